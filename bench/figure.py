"""One measured figure: printed as a line, written as JSON, judged against its target in one place."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from statistics import median

# An exit code that no failure of the bench itself has.
MISSED = 3
BUILD = Path(__file__).parents[1] / "build" / "bench"


class Goal(Enum):
    """Which side of its target a ratio has to be on."""

    AT_MOST = "<="
    AT_LEAST = ">="


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Ours against the other: a peer, or a limit, measured or known in the same run.

    `ours` and `other` are medians in `unit`, `ratio` is ours / other and is what `target` judges. `spread` is
    the lowest and the highest of our `n` samples. A figure that could not be measured has no `ratio`, `met` None
    and a `reason`; it is shown and written like every other.
    """

    figure: str
    unit: str
    target: float
    goal: str
    ours: float | None = None
    other: float | None = None
    ratio: float | None = None
    met: bool | None = None
    n: int = 0
    spread: tuple[float, float] | None = None
    reason: str = ""

    def __str__(self) -> str:
        wanted = f"target {self.goal} {self.target:.4g}"
        if self.met is None:
            return f"?     {self.figure}: not measured ({self.reason}); {wanted}"
        low, high = self.spread or (0.0, 0.0)
        return (
            f"{'met   ' if self.met else 'MISSED'} {self.figure}: {self.ours:.4g} {self.unit}"
            f" ({low:.4g} to {high:.4g}, n={self.n}) / {self.other:.4g} {self.unit} = {self.ratio:.4g}; {wanted}"
        )


def measured(
    figure: str,
    *,
    ours: Sequence[float],
    other: Sequence[float],
    unit: str,
    target: float,
    goal: Goal = Goal.AT_MOST,
) -> Figure:
    """The figure for samples of ours and of the other; a known limit is an `other` of one sample.

    Where the other is not above 0, as a difference of two times may be, no ratio says which is better: unmeasured.
    """
    ratio = median(ours) / median(other) if median(other) > 0 else None
    met = None
    if ratio is not None:
        met = ratio <= target if goal is Goal.AT_MOST else ratio >= target
    return Figure(
        figure=figure,
        unit=unit,
        target=target,
        goal=goal.value,
        ours=median(ours),
        other=median(other),
        ratio=ratio,
        met=met,
        n=len(ours),
        spread=(min(ours), max(ours)),
        reason="" if ratio is not None else _no_ratio(median(ours), median(other), unit),
    )


def _no_ratio(ours: float, other: float, unit: str) -> str:
    return f"ours {ours:.4g} {unit}, the other {other:.4g} {unit}: no ratio to what is not above 0"


def unmeasured(figure: str, *, unit: str, target: float, reason: str, goal: Goal = Goal.AT_MOST) -> Figure:
    """The figure that could not be measured, and why."""
    return Figure(figure=figure, unit=unit, target=target, goal=goal.value, reason=reason)


def publish(name: str, figures: Sequence[Figure], *, folder: Path = BUILD) -> None:
    """Print all figures and write them to `folder`/`name`.json. Exits with `MISSED` if a target was missed."""
    for figure in figures:
        print(figure)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
    print(path)
    missed = sum(figure.met is False for figure in figures)
    if missed:
        print(f"{missed} of {len(figures)} figures missed their target")
        sys.exit(MISSED)
