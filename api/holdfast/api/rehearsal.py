"""Training a few steps again, to see where two runs part: what is asked of the processes, and what they leave.

`holdfast bisect` starts the script with the variable `REHEARSAL_VARIABLE`, which names a file that says what is
wanted. The run then restores from a copy (`uri`), saves nothing, writes down what every module took and gave, and
ends after step `last`. Each rank writes one `Seen` a line, as JSON, in the order in which it happened.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec

from holdfast.api.bounds import Line, Name, Uri, Whole
from holdfast.api.decoding import decode_json

REHEARSAL_VARIABLE: Final = "HOLDFAST_REHEARSAL"
LINE_BYTES_MAX: Final = 64 * 1024
SEEN_MAX: Final = 4_000_000
"""So many lines a rank are read: a thousand modules for a thousand steps."""


class Look(msgspec.Struct, frozen=True):
    """A closer look: at the operations within call `call` of `module` ("": the whole model) in step `step`."""

    step: Whole
    module: Line
    call: Whole = 0


class Rehearsal(msgspec.Struct, frozen=True):
    """What is wanted. `output` is the folder that ranks write into; `uri` is where the copied checkpoint lies."""

    uri: Uri
    output: Line
    last: Whole
    look: Look | None = None


class Kind(StrEnum):
    """What was seen. In a step they come in about this order."""

    STATE = "state"  # a parameter or buffer, before the first step
    RANDOM = "random"  # the generators of random numbers, when the model was called
    ENTER = "enter"  # a module is called: `took`
    OPERATION = "operation"  # within the module that is looked at: `took` and `gave`
    LEAVE = "leave"  # a module returns: `took` and `gave`
    OUTPUT_GRADIENT = "output-gradient"  # of what a module gave
    GRADIENT = "gradient"  # of a parameter, as the optimizer is given it
    PARAMETER = "parameter"  # after the step
    GROUP = "group"  # of parameters, after the step: as a run's history has its fingerprints
    LOSS = "loss"  # as the script tells it
    NORM = "norm"  # the gradient norm, likewise


class Seen(msgspec.Struct, frozen=True, omit_defaults=True):
    """One observation. `took` and `gave` are fingerprints in hex, or numbers in hex; "?" is what could not be
    read.

    `call` counts the calls of a module in a step; `says` are an operation's arguments that are no tensors.
    """

    step: Whole
    kind: Kind
    name: Line
    call: Whole = 0
    took: Name = ""
    gave: Name = ""
    says: Annotated[str, msgspec.Meta(max_length=1024)] = ""


UNREADABLE: Final = "?"


def trace_file(output: Path, rank: int) -> Path:
    """Where a rank leaves what it saw."""
    return output / f"rank-{rank:05d}.jsonl"


def read_rehearsal(path: Path) -> Rehearsal:
    """Raises OSError, and Malformed when the file is none."""
    return decode_json(path.read_bytes(), Rehearsal)
