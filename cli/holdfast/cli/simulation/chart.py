"""Bars with their intervals as one picture: an SVG of our own, or a PNG where Pillow is installed."""

import html
import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.simulator.estimate import Estimate

WIDTH: Final = 840.0
ROW: Final = 20.0
LEFT: Final = 260.0
RIGHT: Final = 110.0
ROWS_MAX: Final = 40
"""Of one group: what is shown beyond that nobody reads."""
LABEL_CHARACTERS: Final = 40
BAR: Final = "#1565c0"
LINE: Final = "#c62828"
INK: Final = "#444444"


class Bars(msgspec.Struct, frozen=True):
    """One group: a heading with the unit, and a bar for each row, from 0 or from the least value to its mean."""

    heading: str
    rows: Sequence[tuple[str, Estimate]]


class Box(msgspec.Struct, frozen=True):
    left: float
    top: float
    width: float
    height: float
    colour: str


class Words(msgspec.Struct, frozen=True):
    """`end`: the text ends at `x`, else it begins there."""

    x: float
    y: float
    text: str
    end: bool = False


Shape = Box | Words


def check_chart(file: Path) -> None:
    """Refuse a file that no picture can be written to. Raises InvalidInput, Unavailable."""
    if file.suffix not in (".svg", ".png"):
        raise InvalidInput(Problem("--plot", str(file), "name a file that ends with .svg or .png"))
    if not file.absolute().parent.is_dir():
        raise InvalidInput(Problem("--plot", str(file), "name a file in a directory that is there"))
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise InvalidInput(Problem("--plot", str(file), "name a file that may be written"))
    if file.suffix == ".png" and importlib.util.find_spec("PIL") is None:
        raise Unavailable("a PNG needs Pillow: pip install pillow, or name a file that ends with .svg")


def write_chart(file: Path, groups: Sequence[Bars]) -> None:
    """Write the picture, by the name of the file. Raises InvalidInput, Unavailable."""
    check_chart(file)
    shapes = list(_shapes(groups))
    height = ROW * (sum(min(len(each.rows), ROWS_MAX) + 2 for each in groups) + 1)
    try:
        if file.suffix == ".svg":
            file.write_text(svg(shapes, height), encoding="utf-8")
        else:
            _png(file, shapes, height)
    except OSError as error:
        fix = f"give a file that can be written: {error.strerror or error}"
        raise InvalidInput(Problem("--plot", str(file), fix)) from None


def svg(shapes: Sequence[Shape], height: float) -> str:
    """As markup that loads nothing."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" role="img"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH:g}" height="{height:g}" fill="#ffffff"/>',
    ]
    for each in shapes:
        match each:
            case Box(left, top, width, tall, colour):
                lines.append(
                    f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{tall:.1f}" fill="{colour}"/>'
                )
            case Words(x, y, text, end):
                anchor = "end" if end else "start"
                lines.append(
                    f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}">{html.escape(text)}</text>'
                )
    return "\n".join([*lines, "</svg>", ""])


def _png(file: Path, shapes: Sequence[Shape], height: float) -> None:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (round(WIDTH), round(height)), "white")
    draw = ImageDraw.Draw(image)
    for each in shapes:
        match each:
            case Box(left, top, width, tall, colour):
                draw.rectangle((left, top, left + max(1.0, width), top + max(1.0, tall)), fill=colour)
            case Words(x, y, text, end):
                draw.text((x, y), text, fill=INK, anchor="rs" if end else "ls")
    image.save(file)


def _shapes(groups: Sequence[Bars]) -> Iterator[Shape]:
    top = ROW
    for group in groups:
        yield Words(LEFT, top + ROW * 0.7, group.heading)
        top += ROW
        rows = group.rows[:ROWS_MAX]
        low, high = _span([estimate for _, estimate in rows])
        for label, estimate in rows:
            yield from _row(label, estimate, (low, high), top)
            top += ROW
        top += ROW


def _row(label: str, estimate: Estimate, span: tuple[float, float], top: float) -> Iterator[Shape]:
    def place(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - span[0]) / (span[1] - span[0])

    shown = "".join(each if each.isprintable() else "?" for each in label)
    kept = shown if len(shown) <= LABEL_CHARACTERS else f"{shown[: LABEL_CHARACTERS - 1]}…"
    yield Words(LEFT - 8, top + ROW * 0.7, kept, end=True)
    start, end = sorted((place(max(0.0, span[0])), place(estimate.mean)))
    yield Box(start, top + 3, end - start, ROW - 8, BAR)
    last = end
    if estimate.low is not None and estimate.high is not None:
        last = max(last, place(estimate.high))
        yield Box(place(estimate.low), top + ROW / 2 - 2, place(estimate.high) - place(estimate.low), 2, LINE)
    yield Words(last + 8, top + ROW * 0.7, f"{estimate.mean:.4g}")


def _span(rows: Sequence[Estimate]) -> tuple[float, float]:
    """From 0, or from just below all where they are far from it and close together, up to the greatest."""
    least = min((each.mean if each.low is None else each.low for each in rows), default=0.0)
    most = max((each.mean if each.high is None else each.high for each in rows), default=1.0)
    if least > 0.0 and (most - least) < 0.2 * most:
        least -= 0.25 * (most - least) or 0.5 * least
    else:
        least = min(0.0, least)
    return (least, most) if most > least else (least, least + 1.0)
