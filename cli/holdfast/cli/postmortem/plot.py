"""One figure over time as an SVG of our own: a line, its scale, and marks. Numbers and our own words alone."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

Points = Sequence[tuple[float, float]]
WIDTH: Final = 720.0
HEIGHT: Final = 180.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 12.0, 12.0, 24.0
_TICKS: Final = 4
_POINTS_MAX: Final = 720
"""More than the picture has columns show nothing more."""
_GAP: Final = 5.0
"""Points further apart than so many of their median distances are not joined: nothing was heard between them."""
COLOURS: Final[Mapping[str, str]] = {"began": "#c62828", "detected": "#e65100", "recovered": "#2e7d32"}


def svg(points: Points, span: tuple[float, float], marks: Mapping[str, float], unit: str) -> str:
    """A picture of `points` (seconds since 1970, value) over `span`, without an empty line in it.

    `marks` are times by the names in COLOURS. `unit` is a word of ours, and stands at the scale. Without a finite
    point the picture has its axes alone.
    """
    kept = thinned([(at, value) for at, value in points if math.isfinite(value) and span[0] <= at <= span[1]])
    low, high = _range([value for _, value in kept])
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img"'
        ' font-family="sans-serif" font-size="11" fill="currentColor">'
    ]
    for value in _ticks(low, high):
        height = _y(value, low, high)
        lines.append(
            f'<line x1="{_LEFT:g}" x2="{WIDTH - _RIGHT:g}" y1="{height:.1f}" y2="{height:.1f}" stroke="#8884"/>'
            f'<text x="{_LEFT - 6:g}" y="{height + 4:.1f}" text-anchor="end">{value:.4g}</text>'
        )
    lines.append(f'<text x="{_LEFT:g}" y="10">{unit}</text>')
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        at = span[0] + share * (span[1] - span[0])
        told = datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")
        lines.append(f'<text x="{_x(at, span):.1f}" y="{HEIGHT - 6:g}" text-anchor="{anchor}">{told}</text>')
    for name, at in marks.items():
        if span[0] <= at <= span[1]:
            place = _x(at, span)
            lines.append(
                f'<line x1="{place:.1f}" x2="{place:.1f}" y1="{_TOP:g}" y2="{HEIGHT - _BOTTOM:g}"'
                f' stroke="{COLOURS[name]}" stroke-dasharray="4 3"/>'
            )
    for run in _runs(kept):
        told = " ".join(f"{_x(at, span):.1f},{_y(value, low, high):.1f}" for at, value in run)
        if len(run) == 1:
            x, _, y = told.partition(",")
            lines.append(f'<circle cx="{x}" cy="{y}" r="1.5" fill="#1565c0"/>')
        else:
            lines.append(f'<polyline points="{told}" fill="none" stroke="#1565c0" stroke-width="1.5"/>')
    return "\n".join([*lines, "</svg>"])


def thinned(points: Points) -> Points:
    """At most so many as there are columns: of each stretch its least and its greatest, so that spikes stay."""
    if len(points) <= _POINTS_MAX:
        return points
    size = math.ceil(2 * len(points) / _POINTS_MAX)
    kept: list[tuple[float, float]] = []
    for first in range(0, len(points), size):
        stretch = points[first : first + size]
        ends = {min(stretch, key=lambda each: each[1]), max(stretch, key=lambda each: each[1])}
        kept += sorted(ends)
    return kept


def _runs(points: Points) -> list[Points]:
    """The points in stretches within which something was heard all the time."""
    gaps = sorted(after[0] - before[0] for before, after in pairwise(points))
    limit = _GAP * gaps[len(gaps) // 2] if gaps else math.inf
    runs: list[list[tuple[float, float]]] = []
    for each in points:
        if runs and each[0] - runs[-1][-1][0] <= limit:
            runs[-1].append(each)
        else:
            runs.append([each])
    return list(runs)


def _range(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0))


def _ticks(low: float, high: float) -> Sequence[float]:
    return [low + (high - low) * place / _TICKS for place in range(_TICKS + 1)]


def _x(at: float, span: tuple[float, float]) -> float:
    width = WIDTH - _LEFT - _RIGHT
    return _LEFT + width * (at - span[0]) / ((span[1] - span[0]) or 1.0)


def _y(value: float, low: float, high: float) -> float:
    height = HEIGHT - _TOP - _BOTTOM
    return HEIGHT - _BOTTOM - height * (value - low) / ((high - low) or 1.0)
