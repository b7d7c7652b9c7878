"""One process's stay in one round: known to the training thread that lives it and the side thread that ends it."""

import threading

from holdfast.api.checkpoint import Standing
from holdfast.api.control import Assignment
from holdfast.trainer.ended import RoundEnded
from holdfast.trainer.group import RoundGroup
from holdfast.trainer.wantedsave import WantedSave


class Stay:
    """`end` may be called from any thread, and the first reason counts.

    `standing` is what the watchdog has said of the history that goes on.
    """

    def __init__(self, assignment: Assignment, group: RoundGroup) -> None:
        self.assignment = assignment
        self.group = group
        self.saves = WantedSave(assignment.world_size)
        self.standing = Standing(assignment.restore.verified, assignment.restore.unhealthy_from)
        self._reason: str | None = None
        self._over = threading.Event()

    def goes_on_from(self, step: int | None) -> None:
        """`step` was restored, None: nothing. What came after it is trained anew, whatever was known of it."""
        verified, unhealthy_from = self.standing.verified, self.standing.unhealthy_from
        self.standing = Standing(
            verified=None if verified is None or step is None else min(verified, step),
            unhealthy_from=None if unhealthy_from is None or (step or 0) < unhealthy_from else unhealthy_from,
        )

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
