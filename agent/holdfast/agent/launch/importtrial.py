"""Importing what a script will need, on trial: a package that a forked worker must not inherit is found out.

A worker that is forked has everything that its parent's imports left behind, and nothing that they did with what
only the worker knows. So a package is not for a warm parent when its import

- leaves a thread running, or another process: neither is in the fork, and a lock they hold stays locked for ever;
- opens a device or a socket: a CUDA context does not survive a fork, and a connection would be shared by all;
- reads what is different in each worker (`RANK` and its like): all of them would have one answer;
- reads what the script sets before it imports (`HF_HOME` and its like): it would have the answer of before;
- changes a signal handler or the working directory, which the worker sets back;
- takes too long, or breaks.

Source: https://docs.pytorch.org/docs/stable/notes/multiprocessing.html (poison fork) and
https://man7.org/linux/man-pages/man2/fork.2.html
"""

import contextlib
import faulthandler
import importlib
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import ClassVar, Final, NoReturn

from holdfast.agent.launch.preload import is_installed, trying_file
from holdfast.api.control import Assignment, round_environment
from holdfast.api.round import Endpoint, Restore

_DEVICES: Final = re.compile(r"^/dev/(?:nvidia|kfd|dri/|infiniband/|habanalabs|accel|neuron|vfio/)")
_SOCKET: Final = re.compile(r"^socket:\[")
_LOOKS: Final = 100
_LOOK_INTERVAL_S: Final = 0.01
_STUCK_S: Final = 10.0  # beyond the limit, when not even a signal handler gets to run


class TookTooLong(BaseException):
    """An import's time is over. No `except Exception` of the package itself takes it."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a process has beside its memory."""

    threads: int
    devices: frozenset[str]
    sockets: frozenset[str]
    children: frozenset[str]
    handlers: tuple[object, ...]
    directory: str

    @classmethod
    def now(cls) -> "Surroundings":
        """Those of this process, as /proc tells them."""
        open_files = set()
        for entry in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # the one that lists them is gone
                open_files.add(os.readlink(f"/proc/self/fd/{entry}"))
        children: set[str] = set()
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # a kernel without this file
                children |= set(Path(f"/proc/self/task/{task}/children").read_text().split())
        return cls(
            threads=len(os.listdir("/proc/self/task")),
            devices=frozenset(each for each in open_files if _DEVICES.match(each)),
            sockets=frozenset(each for each in open_files if _SOCKET.match(each)),
            children=frozenset(children),
            handlers=tuple(signal.getsignal(number) for number in sorted(signal.valid_signals())),
            directory=os.getcwd(),
        )

    def against(self, after: "Surroundings") -> str:
        """What `after` has that a worker must not inherit; empty: nothing."""
        if after.threads > self.threads:
            return f"it leaves {after.threads - self.threads} threads running"
        if more := after.devices - self.devices:
            return f"it opens {', '.join(sorted(more))}"
        if after.sockets - self.sockets:
            return "it opens a connection"
        if after.children - self.children:
            return "it starts a process"
        if after.handlers != self.handlers:
            return "it changes what is done on a signal"
        return "" if after.directory == self.directory else "it changes the working directory"


def _of_each_worker() -> frozenset[str]:
    nobody = Assignment("", 0, 0, 0, 1, 1, Endpoint("", 0), Restore(), "")
    return frozenset(round_environment(nobody))


class _Told(os._Environ):  # type: ignore[type-arg]
    """The environment, which remembers which of some variables were asked for."""

    of_interest: ClassVar[frozenset[str]] = frozenset()
    asked: ClassVar[set[str]] = set()

    def __getitem__(self, name: str) -> str:
        if name in _Told.of_interest:
            _Told.asked.add(name)
        value: str = super().__getitem__(name)
        return value

    def __contains__(self, name: object) -> bool:
        if name in _Told.of_interest:
            _Told.asked.add(str(name))
        return super().__contains__(name)


OF_EACH_WORKER: Final = _of_each_worker()


@contextmanager
def asked_for(variables: frozenset[str]) -> Iterator[set[str]]:
    """Those of these variables that the block's Python code asks the environment for."""
    before = os.environ.__class__
    _Told.asked, _Told.of_interest = set(), variables
    os.environ.__class__ = _Told
    try:
        yield _Told.asked
    finally:
        os.environ.__class__ = before


@dataclass(slots=True)
class ImportTrial:
    """Imports unit after unit. `changed` are variables that the script sets before it imports. `loaded` counts
    modules, `ignored` are units that are not there or the user's.
    """

    path: Path
    limit_s: float
    changed: frozenset[str] = frozenset()
    loaded: int = 0
    ignored: list[str] = field(default_factory=list)
    _began_with: dict[str, str] = field(default_factory=dict)

    def run(self, units: dict[str, tuple[str, ...]]) -> tuple[str, str] | None:
        """Import them all. Returns the first unit that this process must not hold, and why; it is to start anew.

        Raises OSError when what is tried cannot be written down.
        """
        before = Surroundings.now()
        self._began_with = dict(os.environ)
        for unit, names in units.items():
            if not is_installed(unit):
                self.ignored.append(unit)
                continue
            trying_file(self.path).write_text(unit)
            why = self._import(names)
            if not why:
                why = before.against(_settled(before))
            if why:
                trying_file(self.path).unlink(missing_ok=True)
                return unit, why
        trying_file(self.path).unlink(missing_ok=True)
        return None

    def _import(self, names: tuple[str, ...]) -> str:
        """Import a unit's modules; why it must be left, or nothing.

        A module that is not there was not there for the script either, which asked for it and went on.
        """
        try:
            with _limited(self.limit_s), asked_for(OF_EACH_WORKER | self.changed) as asked:
                for name in names:
                    with contextlib.suppress(ImportError):
                        importlib.import_module(name)
                        self.loaded += 1
        except TookTooLong:
            return f"its import takes more than {self.limit_s:g} s"
        except BaseException as error:  # a package may even try to end the process
            return f"its import fails: {error!r}"
        if of_each := asked & OF_EACH_WORKER:
            return f"its import reads {', '.join(sorted(of_each))}"
        # What imports set themselves, here as in the script, is no news to them.
        own = {name for name in asked if os.environ.get(name) == self._began_with.get(name)}
        return f"its import reads {', '.join(sorted(own))}, which the script sets before" if own else ""


def _settled(before: Surroundings) -> Surroundings:
    """What there is once threads that have been told to end are gone from /proc: the kernel takes a moment."""
    after = Surroundings.now()
    for _ in range(_LOOKS):
        if after.threads <= before.threads:
            break
        time.sleep(_LOOK_INTERVAL_S)
        after = Surroundings.now()
    return after


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise `TookTooLong` in the block after so long, and end the process where even that does not get through."""

    def over(number: int, frame: FrameType | None) -> NoReturn:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(seconds + _STUCK_S, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        faulthandler.cancel_dump_traceback_later()
        if signal.getsignal(signal.SIGALRM) is over:  # else the package has taken it
            signal.signal(signal.SIGALRM, before)
