"""One process's stay in one round: known to the training thread that lives it and the side thread that ends it."""

import threading

from holdfast.api.control import Assignment
from holdfast.trainer.ended import RoundEnded
from holdfast.trainer.group import RoundGroup
from holdfast.trainer.wantedsave import WantedSave


class Stay:
    """`end` may be called from any thread, and the first reason counts.

    `verified` is the last step after which all replicas are known to have been equal, None: not known of any.
    """

    def __init__(self, assignment: Assignment, group: RoundGroup) -> None:
        self.assignment = assignment
        self.group = group
        self.saves = WantedSave(assignment.world_size)
        self.verified = assignment.restore.verified
        self._reason: str | None = None
        self._over = threading.Event()

    def goes_on_from(self, step: int | None) -> None:
        """`step` was restored, None: nothing. What came after it is trained anew, whatever was known of it."""
        self.verified = None if self.verified is None or step is None else min(self.verified, step)

    @property
    def is_over(self) -> bool:
        return self._reason is not None

    def end(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason
        self._over.set()

    def check(self) -> None:
        """Raises RoundEnded when the round is over."""
        if self._reason is not None:
            raise RoundEnded(self.assignment.round, self._reason)

    def await_end(self, timeout_s: float) -> bool:
        """Wait until the round is over; False when it was not within `timeout_s`."""
        return self._over.wait(timeout_s)
