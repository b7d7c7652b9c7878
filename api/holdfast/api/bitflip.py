"""Corruption on request: one bit of one rank's parameters is flipped in memory, or its outputs are NaN for some
steps. For drills and tests only.

A training process looks for requests only where the environment variable `CORRUPTIBLE_VARIABLE` is set, in its run
directory; a launcher takes drills of self-tests only there, too. A request is a file of its own, so that whoever
takes it, by removing it, is the only one to act on it.
"""

import os
from pathlib import Path
from typing import Annotated

import msgspec

CORRUPTIBLE_VARIABLE = "HOLDFAST_CORRUPTIBLE"


class BitFlip(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """After `rank` completed `step`, or the first step after it that finds this, flip `bit` of one element.

    `parameter` is its name, None: the last, as of the first, an embedding, a part may never be used. `element`
    counts in memory order. Both numbers wrap around.
    """

    rank: int
    step: int
    bit: Annotated[int, msgspec.Meta(ge=0)] = 12
    parameter: str | None = None
    element: Annotated[int, msgspec.Meta(ge=0)] = 0


def bit_flip_file(run_directory: Path, rank: int) -> Path:
    """Where the request for `rank` lies."""
    return run_directory / f"bit-flip-{rank}.json"


def request_bit_flip(run_directory: Path, flip: BitFlip) -> None:
    """Ask for it, in place of what was asked of the rank before. Raises OSError."""
    _leave(bit_flip_file(run_directory, flip.rank), flip)


class NanOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At step `step` of `rank`, or the first one after it that finds this, what its model computes is NaN, for
    `steps` steps in all. Steps that are trained again after the job went back count again.
    """

    rank: int
    step: int
    steps: Annotated[int, msgspec.Meta(ge=1)] = 1


def nan_file(run_directory: Path, rank: int) -> Path:
    """Where the request for `rank` lies."""
    return run_directory / f"nan-{rank}.json"


def request_nan(run_directory: Path, wanted: NanOutput) -> None:
    """Ask for it, in place of what was asked of the rank before. Raises OSError."""
    _leave(nan_file(run_directory, wanted.rank), wanted)


def _leave(path: Path, wanted: BitFlip | NanOutput) -> None:
    fresh = path.with_name(f"{path.name}.fresh")
    fresh.write_bytes(msgspec.json.encode(wanted))
    os.replace(fresh, path)
