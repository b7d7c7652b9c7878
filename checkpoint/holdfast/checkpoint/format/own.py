"""Names of what a rank keeps for itself, where ranks hold something of one name and not the same.

The lowest of the ranks that hold it stores it under its name, each other one under a name of its own:
`own.rank-00003.model.norm.mean`, or `own.rank-00003-4-0.model.linear.weight` of what begins at (4, 0) of a tensor.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

PREFIX: Final = "own.rank-"
_NAME: Final = re.compile(r"own\.rank-(\d{5,9})((?:-\d+)*)\.(.+)", re.DOTALL)


class Own(NamedTuple):
    """What `rank` keeps for itself of `name`. `offsets` are empty where it begins at the tensor's beginning."""

    rank: int
    offsets: tuple[int, ...]
    name: str


def own_name(rank: int, name: str, offsets: Sequence[int]) -> str:
    at = "".join(f"-{each}" for each in offsets) if any(offsets) else ""
    return f"{PREFIX}{rank:05d}{at}.{name}"


def read_own(name: str) -> Own | None:
    """None for any other name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return Own(int(match[1]), tuple(map(int, match[2].split("-")[1:])), match[3])
