"""The fault script of a node's simulated GPUs: one JSON object a line, appended while the job runs.

{"gpu": 0, "xid": 79, "text": "GPU has fallen off the bus"}
{"gpu": 0, "xid": 149, "text": "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)"}
{"gpu": 0, "xid": 154, "text": "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"}
{"gpu": 0, "lost": true}
{"gpu": 1, "temperature_c": 95}
{"gpu": 0, "condition": "PcieDegraded", "text": "8 lanes of 16"}
{"gpu": 0, "condition": "PcieDegraded", "over": true}
{"gpu": 0, "taken_away_in_s": 120}
"""

import os
import time
from typing import Annotated, Final

import msgspec

from holdfast.api.condition import ConditionKind
from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed

FILE_NAME: Final = "gpu-faults.jsonl"
_MAX_READ_BYTES: Final = 1 << 16  # per look: a larger script is taken in over several looks


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One thing that happens to simulated GPU number `gpu`. At least one of the effects is set.

    `xid` raises that error, `text` is what the driver adds, `lost` makes the GPU answer no more, `temperature_c`
    holds its temperature from then on. `condition` is raised, or cleared where it is `over`, of the GPU, or of its
    node where no GPU can have it; `taken_away_in_s` is a notice that the node is taken away. `at_ns` is when it
    happened (CLOCK_MONOTONIC); None, as in a line written by hand, means when it is read.
    """

    gpu: int
    xid: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)] | None = None
    text: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    recovery_action: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)] | None = None
    lost: bool = False
    temperature_c: float | None = None
    condition: ConditionKind | None = None
    over: bool = False
    taken_away_in_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    at_ns: Annotated[int, msgspec.Meta(ge=0)] | None = None


class BadFault(Exception):
    """A line of the script is none. Its text says what is wrong with it."""


def inject(run_dir: str, fault: Fault) -> None:
    """Make `fault` happen to the simulated GPUs of the node whose run directory this is. Raises OSError."""
    if fault.at_ns is None:
        fault = msgspec.structs.replace(fault, at_ns=time.monotonic_ns())
    line = msgspec.json.encode(fault) + b"\n"
    file = os.open(os.path.join(run_dir, FILE_NAME), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, line)  # one append of one short line: two injectors cannot mix their lines
    finally:
        os.close(file)


def parse_fault(line: bytes, gpus: int) -> Fault:
    """One line for a node of `gpus` simulated GPUs. Raises BadFault."""
    try:
        fault = decode_json(line, Fault)
    except Malformed as error:
        raise BadFault(str(error)) from error
    if not 0 <= fault.gpu < gpus:
        raise BadFault(f"there is no simulated GPU {fault.gpu}, only 0 to {gpus - 1}")
    effects = (fault.xid, fault.lost or None, fault.temperature_c, fault.condition, fault.taken_away_in_s)
    if all(each is None for each in effects):
        raise BadFault("it has no effect: give xid, lost, temperature_c, condition or taken_away_in_s")
    return fault


class ScriptTail:
    """The lines appended to a script since the last look. A script that was replaced or cut starts over."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._inode = 0
        self._offset = 0
        self._partial = b""

    def new_lines(self) -> list[bytes]:
        """Whole new lines without their ends; a last line still being written waits. Raises OSError."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return []
        if status.st_ino != self._inode or status.st_size < self._offset:
            self._inode, self._offset, self._partial = status.st_ino, 0, b""
        if status.st_size == self._offset:
            return []
        with open(self._path, "rb") as script:
            script.seek(self._offset)
            found = script.read(_MAX_READ_BYTES)
        self._offset += len(found)
        *lines, self._partial = (self._partial + found).split(b"\n")
        if len(self._partial) > _MAX_READ_BYTES:
            lines.append(self._partial)  # no fault is that long: let it be refused instead of growing
            self._partial = b""
        return [line for line in lines if line.strip()]
