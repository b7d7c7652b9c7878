r"""One record of the kernel's log: what the kernel itself said, and when. Pure.

Two forms are read. The device gives one record a read: `6,339,5140900,-;NVRM: ...`, that is facility and level,
sequence, microseconds on the log's clock, flags; lines after the first are fields of the device model; what is
not printable is written as \xNN. Source: https://docs.kernel.org/admin-guide/abi-testing.html#abi-dev-kmsg

A log file has a line a message, with the stamp of `dmesg` or the head of a syslog daemon, or both.

Whatever a program wrote is left out: into the device it gets the facility of programs, into a syslog the
program's name where the kernel's stands. A line that merely quotes an error is nobody's fault.
"""

import re
from dataclasses import dataclass
from typing import Final

# The kernel cuts a record at 1 KiB (8 KiB with fields); a longer line of a file is no message of the kernel's.
TEXT_CHARACTERS_MAX: Final = 2048
_RECORD_BYTES_MAX: Final = 16384

_HEAD: Final = re.compile(rb"(\d{1,6}),(\d{1,20}),(\d{1,20}),([^,;]{0,8})[^;]{0,200};")
_ESCAPED: Final = re.compile(rb"\\x([0-9a-f]{2})")
_STAMP: Final = r"\[ *(?P<seconds>\d{1,12}\.\d{1,9})\](?:\[ *[TC]\d+\])? "
_DMESG: Final = re.compile(_STAMP + r"(?P<text>.*)")
_DATED: Final = re.compile(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} [\d:]{8} \d{4}\] (?P<text>.*)")
_SYSLOG: Final = re.compile(
    r"(?:<\d{1,3}>)?(?:[A-Z][a-z]{2} +\d{1,2} [\d:]{8}|\d{4}-\d\d-\d\dT\S{8,30}) \S{1,255} kernel: "
    rf"(?:{_STAMP})?(?P<text>.*)"
)


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One message. `said_at_s` is on the kernel log's clock, seconds since boot; None: Unknown.

    `text` is empty where a program, not the kernel, speaks, and where a record only continues another one.
    """

    text: str
    sequence: int | None = None
    said_at_s: float | None = None


def parse_record(record: bytes) -> KernelRecord | None:
    """One read of the device; None when it has not the device's form."""
    head = _HEAD.match(record[:_RECORD_BYTES_MAX])
    if head is None:
        return None
    sequence, said_at_s = int(head[2]), int(head[3]) / 1e6
    of_the_kernel = int(head[1]) >> 3 == 0
    if not of_the_kernel or head[4] == b"+":
        return KernelRecord("", sequence, said_at_s)
    line, _, _fields = record[head.end() :].partition(b"\n")
    whole = _ESCAPED.sub(lambda found: bytes((int(found[1], 16),)), line)
    return KernelRecord(_text(whole), sequence, said_at_s)


def parse_line(line: bytes) -> KernelRecord | None:
    """One line of a log file; None when the kernel did not say it, or too much at once."""
    if len(line) > _RECORD_BYTES_MAX:
        return None
    text = line.rstrip(b"\r\n").decode("utf-8", "replace")
    match = _SYSLOG.fullmatch(text) or _DMESG.fullmatch(text) or _DATED.fullmatch(text)
    if match is None:
        return None
    seconds = match.groupdict().get("seconds")
    said_at_s = None if seconds is None else float(seconds)
    return KernelRecord(match["text"][:TEXT_CHARACTERS_MAX], said_at_s=said_at_s)


def _text(raw: bytes) -> str:
    return raw[: 4 * TEXT_CHARACTERS_MAX].decode("utf-8", "replace")[:TEXT_CHARACTERS_MAX]
