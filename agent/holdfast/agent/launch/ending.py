"""How a worker ended: the Python exception in what it wrote last, its pod's memory limit, its last step.

A traceback from a training script runs through Holdfast, runpy and torch; what its author can change are the
frames of their own files. Of what lies below those, two frames are shown with whose they are: the one that raised,
and the last one of Holdfast's. All others are left out, unless there are no own ones.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from holdfast.api.rankrecord import SEQUENCE, STEP_SEQUENCE_OFFSET, UNKNOWN_INT, check_header, unpack_step
from holdfast.api.stacks import is_own, owner_of

_HEADER = "Traceback (most recent call last):"
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d{1,9})(?:, in (?P<name>.+))?$')
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:: .*|:)?$")
# Python's compiler names the file and the line without a traceback when it is the script itself that it refuses.
_NOT_COMPILED = re.compile(r"^(?:SyntaxError|IndentationError|TabError): ")
# While a process group stands, torch puts the rank before every line of a traceback.
_RANK = re.compile(r"^\[rank\d+\]: ?")
# Python colours a traceback where the environment forces it to.
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# An exception group is told with a margin: the group's own traceback, then that of each exception in it. The last
# one is taken.
_GROUP = "Exception Group Traceback (most recent call last):"
_MARGIN = re.compile(r"^ *[|+] ?(?=\S|  )")
# What follows the exception's line and is no part of its message: another program's log line, an empty line.
_AFTERWARDS = re.compile(r"^(?:\[|\+?-+(?: \d+ -+)?$|\d{4}-|Exception ignored|Traceback|$)")
_US = "Holdfast"
# What no data and no machine raise by themselves. KeyError and ValueError come of state that does not fit as well.
_MISTAKE = re.compile(
    r"(?:TypeError|AttributeError|NameError|UnboundLocalError|IndexError|AssertionError|ZeroDivisionError)\b"
)
# What a call raises that is given what it cannot take.
_OF_ARGUMENTS = re.compile(r"TypeError\b")
_LOADER = re.compile(r"/torch/utils/data/")
_MESSAGE_LINES_MAX = 6
_TRACE_BYTES = 8
_TEXT_CHARACTERS_MAX = 16 << 10
CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
NODE = Path("/proc/vmstat")
MEMORY_LOOK_S = 1.0
NO_LIMIT_BYTES = 1 << 60  # a group of the first version without a limit says the largest number of pages


@dataclass(frozen=True, slots=True)
class Raised:
    """`exception` is its type and message in one line, `place` the innermost of the user's own lines ("train.py:41
    in step", empty when there is none), and before it that of Holdfast's where the fault is Holdfast's own. `text`
    is the traceback to show. `trace` is equal for exceptions of one class
    that came through the same lines, whatever their message, which may name a rank or a port.
    """

    exception: str
    place: str
    text: str
    trace: str


@dataclass(slots=True)
class _Frame:
    file: str
    line: int
    name: str | None
    lines: list[str]

    @property
    def is_own(self) -> bool:
        return is_own(self.file)

    @property
    def owner(self) -> str:
        return owner_of(self.file)

    @property
    def place(self) -> str:
        where = f"{self.file.rpartition('/')[2]}:{self.line}"
        return where if self.name is None else f"{where} in {self.name}"


@dataclass(slots=True)
class _Block:
    """One traceback of a chain: lines `begin` to `end` of the output."""

    begin: int
    end: int
    header: bool
    frames: list[_Frame]
    message: list[str]


def raised_in(output: str) -> Raised | None:
    """The exception that the end of `output` tells of; None without one, or when its traceback is not whole."""
    lines = [_RANK.sub("", line) for line in _COLOUR.sub("", output).splitlines()]
    if any(line.endswith(_GROUP) for line in lines):
        lines = [_MARGIN.sub("", line).removeprefix("Exception Group ") for line in lines]
    chain = _chain(lines)
    if not chain:
        return None
    last = chain[-1]
    shown: list[str] = []
    for block in chain:
        if shown:
            shown += ["", lines[block.begin - 2].strip(), ""]
        shown += [_HEADER] * block.header + _shown(block) + block.message
    place = next((frame.place for frame in reversed(last.frames) if frame.is_own), "")
    fault = _own_fault(last)
    if fault is not None:
        called = f", called at {place}" if place else ""
        place = f"{fault.place}, a fault of Holdfast's own{called}"
    exception, text = last.message[0][:_TEXT_CHARACTERS_MAX], "\n".join(shown)[-_TEXT_CHARACTERS_MAX:]
    return Raised(exception, place, text, _trace(chain))


def _shown(block: _Block) -> list[str]:
    """The lines of the user's own frames, and of what lies below them those that tell whose the fault is."""
    own = [frame for frame in block.frames if frame.is_own]
    if not own:
        return [line for frame in block.frames for line in frame.lines]
    lines = [line for frame in own for line in frame.lines]
    below, fault = _below(block), _own_fault(block)
    if not below or below[-1].file.startswith("<"):
        return lines
    ours = next((frame for frame in reversed(below) if frame.owner == _US), None)
    if ours is not None and ours is not below[-1]:
        lines += [f"  ... called by {_US}:", *ours.lines]
    said = f"raised in {below[-1].owner}" + (f", a fault of {_US}'s own" if fault is not None else "")
    return [*lines, f"  ... {said}:", *below[-1].lines]


def _below(block: _Block) -> list[_Frame]:
    """The frames that the user's innermost one called."""
    last = max((at for at, frame in enumerate(block.frames) if frame.is_own), default=-1)
    return block.frames[last + 1 :]


def _own_fault(block: _Block) -> _Frame | None:
    """The line of Holdfast's that made the mistake: the innermost, where what was raised is a mistake in a program
    and no word of Holdfast's to the script, and nothing that the script had given was called there. None: it is
    not known to be Holdfast's. What a loader raises is of its data; and a TypeError in the very function that the
    script called is of what it was called with, as a rule. Below that Holdfast says so by an error of its own
    (`InvalidInput`).
    """
    below = _below(block)
    at = max((at for at, frame in enumerate(below) if frame.owner == _US), default=None)
    if at is None or not _MISTAKE.match(block.message[0]):
        return None
    inner = below[at + 1 :]
    is_called = len(below) < len(block.frames) and not any(frame.owner == _US for frame in below[:at])
    if is_called and _OF_ARGUMENTS.match(block.message[0]):
        return None
    is_told = all(frame.owner in ("Python", "torch") and not _LOADER.search(frame.file) for frame in inner)
    return below[at] if is_told else None


def _trace(chain: Sequence[_Block]) -> str:
    """A digest of the classes and the lines of a chain of tracebacks."""
    whole = hashlib.blake2b(digest_size=_TRACE_BYTES)
    for block in chain:
        frames = "|".join(f"{frame.file}:{frame.line}:{frame.name}" for frame in block.frames)
        whole.update(f"{block.message[0].partition(':')[0]}|{frames}\n".encode("utf-8", "replace"))
    return whole.hexdigest()


def _chain(lines: Sequence[str]) -> list[_Block]:
    """The last traceback, and before it those that led to it."""
    blocks: list[_Block] = []
    for at, line in enumerate(lines):
        if line != _HEADER:
            continue
        frames, raised_at = _frames(lines, at + 1)
        if raised_at < len(lines) and _EXCEPTION.match(lines[raised_at]):
            further = lines[raised_at + 1 : raised_at + _MESSAGE_LINES_MAX]
            message = [lines[raised_at], *takewhile(lambda each: not _AFTERWARDS.match(each), further)]
            blocks.append(_Block(at, raised_at + len(message), header=True, frames=frames, message=message))
    refused = _refused(lines)
    if refused is not None and (not blocks or refused.begin > blocks[-1].end):
        return [refused]
    chain = blocks[-1:]
    for earlier in reversed(blocks[:-1]):
        begin = chain[0].begin
        if begin < 2 or lines[begin - 2].strip() not in _CHAINED or earlier.end > begin:
            break
        chain.insert(0, earlier)
    return chain


def _refused(lines: Sequence[str]) -> _Block | None:
    """What the compiler says of a script that it does not take."""
    at = next((at for at in range(len(lines) - 1, -1, -1) if _NOT_COMPILED.match(lines[at])), None)
    if at is None:
        return None
    begin = next((earlier for earlier in range(at - 1, -1, -1) if _FRAME.match(lines[earlier])), None)
    if begin is None or (begin and (lines[begin - 1] == _HEADER or lines[begin - 1].startswith("  "))):
        return None
    frames, end = _frames(lines, begin)
    return _Block(begin, at + 1, header=False, frames=frames, message=[lines[at]]) if end == at else None


def _frames(lines: Sequence[str], at: int) -> tuple[list[_Frame], int]:
    """The frames from line `at` on, and the line after them."""
    frames: list[_Frame] = []
    while at < len(lines):
        line = lines[at]
        if found := _FRAME.match(line):
            frames.append(_Frame(found["file"], int(found["line"]), found["name"], [line]))
        elif frames and line.startswith(("    ", "  [Previous line")):
            frames[-1].lines.append(line)
        else:
            break
        at += 1
    return frames, at


@dataclass(frozen=True, slots=True)
class _Counts:
    """`killed`: processes of this group that the kernel killed for memory, also for the node's. `short`: how often
    this very group was short of it. `node_short`: how often the whole node was, None where it cannot be read.
    """

    killed: int = 0
    short: int = 0
    node_short: int | None = None


class MemoryLimit:
    """Whether the kernel killed a process because its pod reached the memory limit of its own.

    Such a worker ends with signal 9 like one that somebody killed, and its node has no part in it. A container
    whose first process lives on is not marked OOMKilled, and the kernel's log is the agent's, where it may be read
    at all. But the control group of this process counts: this is asked when a worker has ended with signal 9.

    The limit may be of a group above, the pod's: that one counts how often it was short, out of sight of a
    container, whose own group only counts the killed. The other reason for a kill is the node's memory, and before
    that is given up the kernel lets whoever asks for memory look for some, which it counts for the whole node
    (`allocstall_*`; what groups do within their limits does not count there). So a kill in a group that has a
    limit, on a node that was not short, is the pod's own limit. The node is looked at every `MEMORY_LOOK_S`.

    Where nothing can be read, nothing is said to have reached a limit.

    Sources: https://docs.kernel.org/admin-guide/cgroup-v2.html (memory.events, memory.max),
    https://docs.kernel.org/admin-guide/cgroup-v1/memory.html (memory.oom_control, memory.failcnt) and
    https://github.com/torvalds/linux/blob/master/mm/vmscan.c (ALLOCSTALL)
    """

    def __init__(self, control_groups: Path = CONTROL_GROUPS, own: Path = OWN, node: Path = NODE) -> None:
        self._folders = tuple(_folders(control_groups, own))
        self._node = node
        self._known = self._read()
        self._stalls = (self._known.node_short, self._known.node_short)

    def look(self) -> None:
        """See whether the node is short of memory. Call it every `MEMORY_LOOK_S`."""
        self._stalls = (self._stalls[1], self._node_short())

    def has_killed(self) -> bool:
        """Whether a process was killed since the last call, after the group or one above had reached its limit."""
        before, self._known = self._known, self._read()
        if self._known.killed <= before.killed:
            return False
        calm = self._known.node_short is not None and self._known.node_short == self._stalls[0]
        return self._known.short > before.short or (calm and self._is_limited())

    def _read(self) -> _Counts:
        for folder in self._folders:
            events, control = folder / "memory.events", folder / "memory.oom_control"
            with contextlib.suppress(OSError, ValueError, KeyError):
                if events.exists():
                    counted = _counted(events)
                    return _Counts(counted["oom_kill"], counted["oom"], self._node_short())
                if control.exists():
                    short = int((folder / "memory.failcnt").read_text())
                    return _Counts(_counted(control)["oom_kill"], short, self._node_short())
        return _Counts()

    def _node_short(self) -> int | None:
        try:
            counted = [count for name, count in _counted(self._node).items() if name.startswith("allocstall")]
        except (OSError, ValueError):
            return None
        return sum(counted) if counted else None

    def _is_limited(self) -> bool:
        """Whether the group has a limit. A kubelet gives it that of the pod where the container has none.

        Source: getMemoryLimit in
        https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/kuberuntime/kuberuntime_container_linux.go
        """
        for folder in self._folders:
            for file in (folder / "memory.max", folder / "memory.limit_in_bytes"):
                with contextlib.suppress(OSError, ValueError):
                    limit = file.read_text().strip()
                    return limit != "max" and int(limit) < NO_LIMIT_BYTES
        return False


def _folders(control_groups: Path, own: Path) -> Iterator[Path]:
    """Where the group may lie. In a container its own is mounted as the root, whatever path the kernel tells."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            yield control_groups / path.lstrip("/")
        elif "memory" in controllers.split(","):
            yield control_groups / "memory" / path.lstrip("/")
    yield control_groups
    yield control_groups / "memory"


def _counted(file: Path) -> dict[str, int]:
    return {name: int(count) for name, count in (line.split() for line in file.read_text().splitlines())}


def last_completed(record: Path) -> tuple[int, int] | None:
    """The (round, step) in the rank record that a worker left.

    None when Unknown: no record, none completed, or killed while writing.
    """
    try:
        raw = record.read_bytes()
        if check_header(raw) is not None or SEQUENCE.unpack_from(raw, STEP_SEQUENCE_OFFSET)[0] % 2:
            return None
        zone = unpack_step(raw)
    except (OSError, ValueError):
        return None
    return None if zone.step == UNKNOWN_INT else (zone.round, zone.step)
