"""What the launcher and its warm parent say to each other, in frames over a socket pair.

The warm parent is the only process that has workers as children, so it alone starts, signals and reaps them:
a process id it is asked to kill cannot have been reused.
"""

from enum import StrEnum

import msgspec


class EntrypointKind(StrEnum):
    """How the user's program is run."""

    SCRIPT = "Script"  # a Python file, as `python train.py` runs it
    MODULE = "Module"  # an importable module, as `python -m train` runs it
    PROGRAM = "Program"  # anything executable; it gains nothing from the warm parent


class Preload(StrEnum):
    """Whether importing torch beforehand is of any use to the entry point."""

    TORCH = "torch"
    NOTHING = "nothing"


def preload_for(kind: EntrypointKind) -> Preload:
    """Whether a warm parent imports torch for such an entry point."""
    return Preload.NOTHING if kind is EntrypointKind.PROGRAM else Preload.TORCH


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Launcher: start a worker. Answered with `Forked` or `NotForked` under the same `ticket`.

    `name` is what process listings show, `env` the complete environment, `log` the file both of the worker's
    output streams are appended to. `learns`: it is the user's script, and what it imports is of interest.
    """

    ticket: int
    name: str
    kind: EntrypointKind
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    log: str
    learns: bool = False


class Kill(msgspec.Struct, frozen=True, tag=True):
    """Launcher: SIGKILL the worker and everything in its process group. Unknown ones are ignored."""

    pid: int


class Dump(msgspec.Struct, frozen=True, tag=True):
    """Launcher: have the worker write where its threads are. Unknown ones are ignored."""

    pid: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Warm parent: forks are served from now on. When `warm` is false they start cold, because of `reason`.

    `loaded` counts the modules it imported beside those that every script needs; `files` are those of the packages
    it holds, as they were when `stamp` was taken (`preload.stamp_of`).
    """

    warm: bool
    reason: str = ""
    loaded: int = 0
    files: tuple[str, ...] = ()
    stamp: str = ""


class Forked(msgspec.Struct, frozen=True, tag=True):
    """Warm parent: the worker asked for by `ticket` is process `pid`."""

    ticket: int
    pid: int


class NotForked(msgspec.Struct, frozen=True, tag=True):
    """Warm parent: the kernel would not start another process."""

    ticket: int
    error: str


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Warm parent: a worker is gone, and its process group is killed.

    Exactly one of `exit_code` and `signal` is set. `at_ns` is CLOCK_MONOTONIC when the kernel said so.
    """

    pid: int
    at_ns: int
    exit_code: int | None = None
    signal: int | None = None


class GroupGone(msgspec.Struct, frozen=True, tag=True):
    """Warm parent: of the process group of a worker that has ended nothing is left, on its devices neither."""

    pid: int


ToWarmParent = Fork | Kill | Dump
FromWarmParent = Ready | Forked | NotForked | Ended | GroupGone
