"""What came of one fault, and what several of them are worth against a peer or a limit."""

from collections.abc import Sequence
from dataclasses import dataclass

from figure import Figure, measured, unmeasured


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`seconds` until what was waited for happened, None when it did not within `cap_s`.

    `limit_s` is what this very run allows, where that is not the same for all. `lost_steps` is None where no
    step could be lost or none was counted.
    """

    seconds: float | None
    cap_s: float
    limit_s: float | None = None
    lost_steps: int | None = None
    note: str = ""

    @property
    def at_least_s(self) -> float:
        """What is counted: for what did not happen, the time it was waited for."""
        return self.cap_s if self.seconds is None else self.seconds

    def __str__(self) -> str:
        took = f"not within {self.cap_s:.0f} s" if self.seconds is None else f"{self.seconds:.3f} s"
        allowed = f" of {self.limit_s:.3f} s allowed" if self.limit_s is not None else ""
        lost = f", steps lost: {self.lost_steps}" if self.lost_steps is not None else ""
        return f"{took}{allowed}{lost}{', ' if self.note else ''}{self.note}"


def succeeded(outcomes: Sequence[Outcome]) -> str:
    """How many came to a good end, in words."""
    good = sum(outcome.seconds is not None for outcome in outcomes)
    return f"{good} of {len(outcomes)} in time"


def within(figure: str, ours: Sequence[Outcome], *, limit_s: float | None = None) -> Figure:
    """Ours against a limit: one for all, or each run's own."""
    if not ours:
        return unmeasured(figure, unit="s", target=1.0, reason="training did not start")
    limits = [outcome.limit_s or float("nan") for outcome in ours] if limit_s is None else [limit_s]
    return measured(
        f"{figure} ({succeeded(ours)})",
        ours=[outcome.at_least_s for outcome in ours],
        other=limits,
        unit="s",
        target=1.0,
    )


def against(
    figure: str, ours: Sequence[Outcome], peer: Sequence[Outcome], *, name: str, target: float | None = None
) -> Figure:
    """Ours against a peer's, in the same run. What the peer did not manage in time counts as the time it had,
    which makes us look worse than we are. Without a `target`, to be no slower is enough."""
    figure = f"{figure}, over {name}"
    wanted = 1.0 if target is None else target
    if not ours or not peer:
        who = "Holdfast" if not ours else name
        return unmeasured(figure, unit="s", target=wanted, reason=f"training did not start under {who}")
    return measured(
        f"{figure} ({succeeded(ours)}, the peer {succeeded(peer)})",
        ours=[outcome.at_least_s for outcome in ours],
        other=[outcome.at_least_s for outcome in peer],
        unit="s",
        target=wanted,
    )
