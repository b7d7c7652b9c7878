"""What numbers of a question can be: refused by the field, before anything is divided by them."""

import math
from collections.abc import Iterable, Iterator

import msgspec

from holdfast.api.errors import Problem

LEAST = 1e-12
MOST = 1e30


def positive(part: msgspec.Struct, section: str, names: Iterable[str]) -> Iterator[Problem]:
    """Which of these fields are no finite numbers greater than 0."""
    return _outside(part, section, names, LEAST, "give a number greater than 0")


def not_negative(part: msgspec.Struct, section: str, names: Iterable[str]) -> Iterator[Problem]:
    """Which of these fields are neither 0 nor finite numbers greater than it."""
    return _outside(part, section, names, 0.0, "give a number of at least 0")


def _outside(
    part: msgspec.Struct, section: str, names: Iterable[str], least: float, fix: str
) -> Iterator[Problem]:
    for name in names:
        value = getattr(part, name)
        is_tiny = 0.0 < value < LEAST  # what is divided by it would have no number
        if not (math.isfinite(value) and least <= value <= MOST) or is_tiny:
            yield Problem(f"{section}.{name}", value, f"give at most {MOST:g}" if value > MOST else fix)
