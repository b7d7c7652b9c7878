"""Where the workers of a node stand: their stacks, and the collectives they issued last.

A worker that was forked warm writes its stacks itself when it is signalled (`child.write_stacks_when_asked`); of
another one py-spy reads them from outside, where it is installed and may. What collectives it issued last a worker
that uses `holdfast.trainer` says over its control connection.
"""

import asyncio
import contextlib
import itertools
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.agent.sensors.process import parse_state
from holdfast.api.stacks import (
    FRAMES_MAX,
    SIGNAL,
    Collective,
    FlightTold,
    FlightWanted,
    RankStack,
    is_own,
    place_of,
    stacks_file_name,
)
from holdfast.api.telemetry import ProcessState

WITHIN_S: Final = 0.5
"""Of the time that healing takes, so much may go into it. A stuck process answers within a few milliseconds."""
LOOK_INTERVAL_S: Final = 0.005
QUIET_S: Final = 0.02  # a file that has not grown for so long is whole: nothing marks its end
_THREAD: Final = re.compile(r"^(?:Current thread|Thread) 0x")
_FRAME: Final = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d{1,9}) in (?P<name>.+)$')
_OUTERMOST: Final = "<module>"
_BYTES_MAX: Final = 1 << 20
_SILENT: Final = (
    f"its process wrote no stacks within {WITHIN_S} s: the kernel does not run it, or its script has taken "
    f"{SIGNAL.name} for itself"
)
_FLIGHT_BYTES_MAX: Final = 48 << 10  # with the stack it fits a frame to the watchdog


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    function: str


def training_thread(dump: str) -> tuple[Frame, ...]:
    """Of what faulthandler wrote of all threads: the one that called `Run.enter`, else the one that runs the
    script, innermost first, without what leads to the script. Where none does, for faulthandler leaves out what is
    deeper than a hundred calls: the interrupted one, or another one if only that is in the user's own code.

    Source: https://docs.python.org/3/library/faulthandler.html (its limits)
    """
    threads: list[list[Frame]] = []
    interrupted: list[Frame] = []
    for line in dump.splitlines():
        if _THREAD.match(line):
            threads.append([])
            if line.startswith("Current"):
                interrupted = threads[-1]
        elif threads and (found := _FRAME.match(line)):
            threads[-1].append(Frame(found["file"], int(found["line"]), found["name"]))
    return _of_the_script(_training(threads) or _in_own_code([interrupted, *threads]) or interrupted)


def _training(threads: Sequence[Sequence[Frame]]) -> Sequence[Frame]:
    """A script may train on another thread, and wait for it on the one that runs it."""
    entered = (each for each in threads if any(_enters(frame) for frame in each))
    runs_script = (each for each in threads if any(frame.function == _OUTERMOST for frame in each))
    return next(itertools.chain(entered, runs_script), ())


def _in_own_code(threads: Iterable[Sequence[Frame]]) -> Sequence[Frame]:
    return next((each for each in threads if any(is_own(frame.file) for frame in each)), ())


def told_of(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """As many as may be told, in their order: the innermost, then the user's own, then what leads to them.

    A framework calls itself twenty times and more between a script and where it waits.
    """
    own = [at for at, each in enumerate(frames) if is_own(each.file)]
    first = dict.fromkeys((*range(min(1, len(frames))), *own, *range(len(frames))))
    return tuple(frames[at] for at in sorted(list(first)[:FRAMES_MAX]))


def _enters(frame: Frame) -> bool:
    return frame.function == "enter" and frame.file.endswith("/holdfast/trainer/run.py")


def _of_the_script(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """Up to the last line of the user's own at the top level of a module."""
    known = tuple(frames)
    last = max(
        (at for at, each in enumerate(known) if each.function == _OUTERMOST and is_own(each.file)), default=None
    )
    return known if last is None else known[: last + 1]


def is_stopped(pid: int) -> bool:
    """Whether the kernel has stopped the process: SIGSTOP, or a debugger. Of one that is gone it has not."""
    try:
        return parse_state(Path(f"/proc/{pid}/stat").read_bytes()) is ProcessState.STOPPED
    except OSError:
        return False


class StackTaker:
    """Asks all workers at once and waits for `WITHIN_S` at most.

    `dump` signals a worker, `ask` sends to one over its control connection and says whether there is one.
    """

    def __init__(
        self, run_dir: Path, *, dump: Callable[[int], None], ask: Callable[[int, FlightWanted], bool]
    ) -> None:
        self._run_dir = run_dir
        self._dump = dump
        self._ask = ask
        self._number = -1
        self._flights: dict[int, tuple[Collective, ...]] = {}

    def told(self, pid: int, message: FlightTold) -> None:
        """What a worker says of its collectives; an answer that comes too late is dropped."""
        if message.number == self._number:
            fits = len(msgspec.msgpack.encode(message)) <= _FLIGHT_BYTES_MAX
            self._flights[pid] = message.collectives if fits else ()

    def forget(self, pid: int) -> None:
        """The worker is gone."""
        with contextlib.suppress(OSError):
            self._file(pid).unlink(missing_ok=True)

    async def take(self, workers: Mapping[int, int], number: int) -> list[RankStack]:
        """Where each of `workers` (rank by process id) stands."""
        self._number, self._flights = number, {}
        stopped = {pid for pid in workers if is_stopped(pid)}  # they can say nothing, and are not waited for
        begun = {pid: size for pid in workers if pid not in stopped and (size := self._size(pid)) is not None}
        asked = {pid for pid in workers if pid not in stopped and self._ask(pid, FlightWanted(number))}
        for pid in begun:
            self._dump(pid)
        others = workers.keys() - begun.keys() - stopped
        outside = [asyncio.create_task(seen_by_py_spy(pid)) for pid in others]
        await self._whole(begun, asked)
        seen = dict.fromkeys(stopped, "its process is stopped") | dict(await asyncio.gather(*outside))
        self._number = -1
        return [self._stack(pid, rank, begun.get(pid), seen.get(pid, "")) for pid, rank in workers.items()]

    async def _whole(self, begun: Mapping[int, int], asked: set[int]) -> None:
        """Until every file has grown and is whole, and everybody who was asked has told."""
        loop = asyncio.get_running_loop()
        until, sizes, grew_at = loop.time() + WITHIN_S, dict(begun), dict.fromkeys(begun, loop.time())
        while loop.time() < until:
            await asyncio.sleep(LOOK_INTERVAL_S)
            now = loop.time()
            for pid, size in sizes.items():
                if (grown := self._size(pid) or size) != size:
                    sizes[pid], grew_at[pid] = grown, now
            waiting = [pid for pid in sizes if sizes[pid] == begun[pid] or now - grew_at[pid] < QUIET_S]
            if not waiting and asked <= self._flights.keys():
                return

    def _stack(self, pid: int, rank: int, begun: int | None, seen: str | tuple[Frame, ...]) -> RankStack:
        if begun is None:
            frames, missing = ((), seen) if isinstance(seen, str) else (seen, "")
        else:
            frames = training_thread(self._written(pid, begun))
            missing = "" if frames else _SILENT
        shown = told_of(frames)
        return RankStack(
            rank=rank,
            pid=pid,
            frames=tuple(place_of(each.file, each.line, each.function) for each in shown),
            own=tuple(at for at, each in enumerate(shown) if is_own(each.file)),
            collectives=self._flights.get(pid, ()),
            missing=missing,
        )

    def _written(self, pid: int, begun: int) -> str:
        """What the file has gained. A worker may have put another thing in its place: no link is followed, and
        nothing is opened that could keep us waiting.
        """
        try:
            descriptor = os.open(self._file(pid), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return ""
                file.seek(begun)
                return file.read(_BYTES_MAX).decode(errors="replace")
        except OSError:
            return ""

    def _size(self, pid: int) -> int | None:
        """None where there is no file of its own."""
        try:
            known = self._file(pid).lstat()
        except OSError:
            return None
        return known.st_size if stat.S_ISREG(known.st_mode) else None

    def _file(self, pid: int) -> Path:
        return self._run_dir / stacks_file_name(pid)


async def seen_by_py_spy(pid: int) -> tuple[int, tuple[Frame, ...] | str]:
    """What py-spy sees of a process from outside, or why it sees nothing.

    Source: https://github.com/benfred/py-spy (dump, --json)
    """
    program = shutil.which("py-spy")
    if program is None:
        return pid, "it was not forked warm, so it writes no stacks itself, and py-spy is not installed"
    process = await asyncio.create_subprocess_exec(
        *(program, "dump", "--nonblocking", "--json", "--pid", str(pid)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            printed, complaint = await process.communicate()
        threads: list[dict[str, Any]] = json.loads(printed) if process.returncode == 0 else []
    except TimeoutError:
        process.kill()
        await process.wait()
        return pid, f"py-spy did not answer within {WITHIN_S} s"
    except ValueError:
        threads, complaint = [], b"its answer could not be read"
    stacks = [
        tuple(Frame(each["filename"], each["line"], each["name"]) for each in thread["frames"])
        for thread in threads
    ]
    chosen = _training(stacks) or (stacks[0] if stacks else ())
    last = complaint.decode(errors="replace").strip().rpartition("\n")[2]
    return pid, _of_the_script(chosen) if chosen else f"py-spy could not read it: {last}"
