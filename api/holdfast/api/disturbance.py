"""What a drill does to one training process from inside: for rehearsals and tests only.

A process looks for requests only where the environment variable `bitflip.CORRUPTIBLE_VARIABLE` is set, in its run
directory. A request is a file of its own, which the process removes when it begins to act on it, and so tells
whoever asked that it was heard. One that nobody takes changes nothing, and can be taken back.
"""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed


class Ailment(StrEnum):
    """What a training process can be made to suffer."""

    SLOW = "slow"  # each step takes `seconds` longer
    SPIKE = "spike"  # the loss is published `times` what it is
    WRONG_DATA = "wrong-data"  # the batch before is given again
    FULL_DISK = "full-disk"  # nothing of a checkpoint can be written: ENOSPC
    RAISE = "raise"  # the training function raises, once
    BREAK_COLLECTIVE = "break-collective"  # the connections of its process group break, once


class Disturbance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`rank` suffers `ailment` for `steps` steps, or until its round ends."""

    ailment: Ailment
    rank: int
    steps: Annotated[int, msgspec.Meta(ge=1)] = 1
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    times: float = 1.0


def disturbance_file(run_directory: Path, ailment: Ailment, rank: int) -> Path:
    """Where the request lies."""
    return run_directory / f"disturbance-{ailment}-{rank}.json"


def request_disturbance(run_directory: Path, wanted: Disturbance) -> Path:
    """Ask for it, in place of what was asked alike before; returns the file. Raises OSError."""
    path = disturbance_file(run_directory, wanted.ailment, wanted.rank)
    fresh = path.with_name(f"{path.name}.fresh")
    fresh.write_bytes(msgspec.json.encode(wanted))
    os.replace(fresh, path)
    return path


def take_disturbance(run_directory: Path, ailment: Ailment, rank: int) -> Disturbance | None:
    """What is asked for, and asked for no longer; None when there is nothing, or it cannot be read."""
    path = disturbance_file(run_directory, ailment, rank)
    try:
        content = path.read_bytes()
        path.unlink()
        return decode_json(content, Disturbance)
    except (FileNotFoundError, Malformed):
        return None
