"""Where a rank stands: what its training thread executes, and the collectives it issued last.

It is asked for when a round stands still, before anything of it is ended: afterwards nobody could say. A worker
under a warm parent writes its stacks to `stacks_file_name` in its node's run directory when it gets `SIGNAL`; its
launcher reads them there.
"""

import re
import signal
import sysconfig
from enum import StrEnum
from typing import Annotated, Final

import msgspec

import holdfast
from holdfast.api.bounds import Few, Line, Name, Pid, Rank, Text, Whole

SIGNAL: Final = signal.SIGURG
"""A process that does not know it ignores it: nothing happens to a program that is no worker of ours.

Source: https://man7.org/linux/man-pages/man7/signal.7.html (Ign)
"""
FRAMES_MAX: Final = 24
GROUPS_MAX: Final = 8
COLLECTIVES_KEPT: Final = 4
"""Of each group, the newest."""


FRAME_LENGTH_MAX: Final = 200
# Installed packages and the standard library of any interpreter, also one that is not the reader's; and what is in
# no file, as the constructor of a dataclass.
_INSTALLED: Final = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/|^<(?:frozen |string>)")
_PACKAGE: Final = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_HOLDFAST: Final = tuple(f"{root}/" for root in holdfast.__path__)
_ROOTS: Final = (*_HOLDFAST, f"{sysconfig.get_path('stdlib')}/")


def is_own(path: str) -> bool:
    """Whether a source file is the user's: no library's, Python's or Holdfast's."""
    return not _INSTALLED.search(path) and not path.startswith(_ROOTS)


def owner_of(path: str) -> str:
    """Whose a source file is: "" where it is the user's own, else "Holdfast", "Python" or an installed package's
    name.
    """
    if is_own(path):
        return ""
    if path.startswith(_HOLDFAST):
        return "Holdfast"
    package = _PACKAGE.search(path)
    if package is None:
        return "Python"
    return "Holdfast" if package[1] == "holdfast" else package[1].removesuffix(".py")


def place_of(path: str, line: int, function: str) -> str:
    """A line of a stack as people read it: "train.py:41 in step", the file without its folders."""
    return f"{path.rpartition('/')[2]}:{line} in {function}"[:FRAME_LENGTH_MAX]


def stacks_file_name(pid: int) -> str:
    """The file of one process inside the node's run directory."""
    return f"stacks-{pid}.txt"


class Collective(msgspec.Struct, frozen=True, omit_defaults=True):
    """The `sequence`th collective of `group`, as one rank issued it.

    `shapes` are those of its inputs, as "[4, 2] Float". `place` is the innermost line of the user's own code.
    `done` says that it is known to be over.
    """

    group: Name
    sequence: Whole
    operation: Name
    shapes: Name = ""
    place: Line = ""
    done: bool = False


class RankStack(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where `rank` stands. `frames` are its training thread's, the innermost first, as "train.py:40 in spin";
    `own` are the places in it of the user's own code. `missing` is why there are none.
    """

    rank: Rank
    pid: Pid
    frames: Annotated[tuple[Line, ...], Few] = ()
    own: Annotated[tuple[Whole, ...], Few] = ()
    collectives: Annotated[tuple[Collective, ...], Few] = ()
    missing: Text = ""


class Stood(StrEnum):
    """What a rank that others waited for was in, as its stack and the collectives of all ranks say."""

    UNKNOWN = "Unknown"
    OWN = "Own"  # at a line of the script; all collectives that it issued are over
    WAITS = "Waits"  # in a collective that no rank has passed
    HELD = "Held"  # in a collective that others have passed


class Standstill(msgspec.Struct, frozen=True, kw_only=True):
    """Where `told` of `world_size` ranks stand: `stacks` a line for each place, the fewest ranks first, and
    `collectives` what is wrong with those that they issued, if anything is.
    """

    world_size: int
    told: int
    stacks: tuple[str, ...] = ()
    collectives: tuple[str, ...] = ()


class StacksWanted(msgspec.Struct, frozen=True, tag=True):
    """Watchdog to launcher: say where the workers of `round` stand, before you do what you are shown next.

    `number` names the request.
    """

    round: Whole
    number: Whole


class StackTold(msgspec.Struct, frozen=True, tag=True):
    """Launcher to watchdog: one of its ranks, as `StacksWanted` of that number asked."""

    round: Whole
    number: Whole
    stack: RankStack


class FlightWanted(msgspec.Struct, frozen=True, tag=True):
    """Launcher to worker: say which collectives you issued last."""

    number: Whole


class FlightTold(msgspec.Struct, frozen=True, tag=True):
    """Worker to launcher: the answer to `FlightWanted` of that number."""

    number: Whole
    collectives: Annotated[tuple[Collective, ...], Few] = ()
