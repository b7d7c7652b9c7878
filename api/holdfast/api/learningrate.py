"""By what the learning rate is cut, at which steps, and what of that is in a state that was saved meanwhile."""

from collections.abc import Iterable
from math import prod

import msgspec


class LearningRateCut(msgspec.Struct, frozen=True):
    """The learning rate is times `scale` at every step up to `until`, and after that as before; None: for good.

    It began when the job went back to `after`. So a state that was saved after a later step was trained with it,
    and one of `after` or before was not.
    """

    scale: float
    after: int
    until: int | None = None

    def holds_at(self, step: int) -> bool:
        """Whether `step`, trained from now on, has it."""
        return self.until is None or step <= self.until

    def is_in(self, step: int) -> bool:
        """Whether a state that was saved after `step` has it in its learning rates."""
        return self.after < step and self.holds_at(step)


def factor_at(cuts: Iterable[LearningRateCut], step: int) -> float:
    """What all of them together make of the learning rate at `step`, trained from now on."""
    return prod(each.scale for each in cuts if each.holds_at(step))


def cuts_from(cuts: Iterable[LearningRateCut], step: int) -> tuple[LearningRateCut, ...]:
    """The same for a history that goes on from `step`: nothing after it stands that was trained with them."""
    return tuple(msgspec.structs.replace(each, after=min(each.after, step)) for each in cuts)
