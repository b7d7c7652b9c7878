"""The Python exception that ended a worker, found in what it wrote last: with the frames of the user's own files.

A traceback from a training script runs through Holdfast, runpy and torch; what its author can change are the
frames of their own files. The others are left out, unless there are no own ones.
"""

import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field

import holdfast

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
_MESSAGE_LINES_MAX = 6
# Installed packages and the standard library of any interpreter, also one that is not the launcher's; and what is
# in no file, as the constructor of a dataclass.
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/|^<(?:frozen |string>)")


@dataclass(frozen=True, slots=True)
class Raised:
    """`exception` is its type and message in one line, `place` the innermost of the user's own lines ("train.py:41
    in step", empty when there is none), `text` the traceback to show.
    """

    exception: str
    place: str
    text: str


@dataclass(slots=True)
class _Frame:
    file: str
    line: int
    name: str | None
    lines: list[str]

    @property
    def is_own(self) -> bool:
        return not _INSTALLED.search(self.file) and not self.file.startswith(_ROOTS)

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
    message: list[str] = field(default_factory=list)


_ROOTS = tuple(f"{root}/" for root in (*holdfast.__path__, sysconfig.get_path("stdlib")))


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
        own = [frame for frame in block.frames if frame.is_own] or block.frames
        shown += [_HEADER] * block.header + [line for frame in own for line in frame.lines] + block.message
    place = next((frame.place for frame in reversed(last.frames) if frame.is_own), "")
    return Raised(last.message[0], place, "\n".join(shown))


def _chain(lines: Sequence[str]) -> list[_Block]:
    """The last traceback, and before it those that led to it."""
    blocks = [block for at, line in enumerate(lines) if line == _HEADER and (block := _block(lines, at))]
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


def _block(lines: Sequence[str], header: int) -> _Block | None:
    frames, at = _frames(lines, header + 1)
    if at >= len(lines) or not _EXCEPTION.match(lines[at]):
        return None
    message = _message(lines, at)
    return _Block(header, at + len(message), header=True, frames=frames, message=message)


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


def _message(lines: Sequence[str], at: int) -> list[str]:
    """The exception's line, and the further lines of its message."""
    message = [lines[at]]
    for line in lines[at + 1 : at + _MESSAGE_LINES_MAX]:
        if _AFTERWARDS.match(line):
            break
        message.append(line)
    return message
