"""A job's figures over time: a point for every second in which a step was made, thinner the older they are.

When all rows are full, every second one of the older half goes. So the newest hour is there second by second, a
week takes no more memory than a day, and the first point stays.
"""

from dataclasses import astuple, dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

ROWS: Final = 8192
PACE_S: Final = 600.0
"""How long back the pace is taken from: long enough to have heals and saves in it."""


@dataclass(frozen=True, slots=True)
class Point:
    """All ranks as one, `at` (watchdog's clock, seconds). NaN is not known.

    `step` is the lowest newest step; `tokens_s` of all ranks; `mfu` a ratio; of the losses that are finite the
    least, the median and the greatest; `grad_norm` the median; `step_s` the slowest rank's; `wait_share` what of
    their time the ranks waited for others.
    """

    at: float
    step: float
    tokens_s: float
    mfu: float
    loss_min: float
    loss_median: float
    loss_max: float
    grad_norm: float
    step_s: float
    wait_share: float


NAMES: Final = tuple(field.name for field in fields(Point))


class Series:
    """The points of one job, oldest first."""

    def __init__(self, rows: int = ROWS) -> None:
        self._rows = np.full((rows, len(NAMES)), np.nan)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, point: Point) -> None:
        """One more; it takes the place of those that are not before it: another leader's clock may be behind."""
        while self._count and self._rows[self._count - 1, 0] >= point.at:
            self._count -= 1
        if self._count == len(self._rows):
            self._thin()
        self._rows[self._count] = astuple(point)
        self._count += 1

    def newest(self) -> Point | None:
        return Point(*self._rows[self._count - 1].tolist()) if self._count else None

    def pace_s(self) -> float | None:
        """Seconds that a step took lately, heals and steps trained again included; None while none was gained."""
        rows: NDArray[np.float64] = self._rows[: self._count]
        rows = rows[rows[:, 0] >= rows[-1, 0] - PACE_S] if len(rows) else rows
        if len(rows) < 2:
            return None
        took_s, gained = (rows[-1, :2] - rows[0, :2]).tolist()
        return took_s / gained if gained > 0 else None

    def columns(self, points: int) -> dict[str, list[Any]]:
        """At most `points`, evenly spread over the time there is, by name; None where a value is not known."""
        chosen = self._chosen(points)
        return {name: _known(chosen[:, number]) for number, name in enumerate(NAMES)}

    def _chosen(self, points: int) -> NDArray[np.float64]:
        rows: NDArray[np.float64] = self._rows[: self._count]
        if self._count <= points:
            return rows
        at = rows[:, 0]
        wanted = np.linspace(at[0], at[-1], points)
        places = np.unique(np.searchsorted(at, wanted).clip(0, self._count - 1))
        chosen: NDArray[np.float64] = rows[places]
        return chosen

    def _thin(self) -> None:
        half = self._count // 2
        kept = np.concatenate((self._rows[:half:2], self._rows[half : self._count]))
        self._count = len(kept)
        self._rows[: self._count] = kept


def _known(column: NDArray[np.float64]) -> list[float | None]:
    return [value if value == value else None for value in column.tolist()]
