"""GPUs for machines without one: plausible telemetry, and faults that happen on request.

The fault script of a node has one JSON object a line, appended while the job runs.

{"gpu": 0, "xid": 79, "text": "GPU has fallen off the bus"}
{"gpu": 0, "xid": 149, "text": "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)"}
{"gpu": 0, "xid": 154, "text": "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"}
{"gpu": 0, "lost": true}
{"gpu": 1, "temperature_c": 95}
{"gpu": 0, "condition": "PcieDegraded", "text": "8 lanes of 16"}
{"gpu": 0, "condition": "PcieDegraded", "over": true}
{"gpu": 0, "taken_away_in_s": 120}
"""

import math
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

from holdfast.agent.conditions.nodes import NODE_KINDS
from holdfast.agent.conditions.ports import PORT_KINDS
from holdfast.agent.kernel.message import XidLogged, parse_message
from holdfast.agent.reading import Reading
from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed
from holdfast.api.telemetry import (
    GpuDisappeared,
    GpuHealth,
    GpuSample,
    NodeEvent,
    PreemptionNoticed,
    Unreadable,
    XidRaised,
)
from holdfast.api.xid import FELL_OFF_THE_BUS

FILE_NAME: Final = "gpu-faults.jsonl"
_MAX_READ_BYTES: Final = 1 << 16  # per look: a larger script is taken in over several looks
# Invented, as are all its numbers.
_SLOWS_DOWN_AT_C: Final = 90.0
CLEARED_TOLD_S: Final = 60.0  # as in `Reading`
OF_THE_NODE: Final = NODE_KINDS | {ConditionKind.HOST_MEMORY_ERROR, ConditionKind.NVSWITCH_FAULT}
_UUID_SPACE: Final = uuid.UUID("7b1d7d0e-6c1f-5a43-9a55-6d9d3c1b5f0a")


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


def gpu_uuid(node: str, index: int) -> str:
    """The simulated GPU's UUID: the same for the same node and index, always."""
    return f"GPU-{uuid.uuid5(_UUID_SPACE, f'{node}/{index}')}"


class SimulatedGpus:
    """`count` simulated GPUs of one node, steered by the fault script in the run directory."""

    name = "simulated-gpus"

    def __init__(self, run_dir: str, *, node: str, count: int) -> None:
        self._gpus = [_SimulatedGpu(index, gpu_uuid(node, index)) for index in range(count)]
        self._script = ScriptTail(os.path.join(run_dir, FILE_NAME))
        self._bad_lines = 0
        self._last_bad_line = ""

    def read(self, now: float) -> Reading:
        """Apply what was appended to the script, then look at every GPU."""
        unreadable: list[Unreadable] = []
        events: list[NodeEvent] = []
        try:
            for line in self._script.new_lines():
                try:
                    fault = parse_fault(line, len(self._gpus))
                    events.extend(self._gpus[fault.gpu].suffer(fault, now))
                except BadFault as error:
                    self._bad_lines += 1
                    self._last_bad_line = str(error)
        except OSError as error:
            unreadable.append(Unreadable(FILE_NAME, f"cannot read: {error.strerror}"))
        if self._bad_lines:
            # It stays reported: what the line asked for is Unknown from then on.
            reason = f"{self._bad_lines} bad lines, the last: {self._last_bad_line}"
            unreadable.append(Unreadable(FILE_NAME, reason))
        unreadable.extend(Unreadable(gpu.uuid, gpu.failure) for gpu in self._gpus if gpu.failure)
        return Reading(
            gpus=tuple(gpu.sample(now) for gpu in self._gpus),
            events=tuple(events),
            unreadable=tuple(unreadable),
            conditions=tuple(condition for gpu in self._gpus for condition in gpu.conditions(now)),
        )

    def close(self) -> None:
        """Nothing is held open."""


@dataclass(slots=True)
class _SimulatedGpu:
    index: int
    uuid: str
    failure: str = ""
    held_temperature_c: float | None = None
    held: dict[ConditionKind, tuple[ConditionState, float, str]] = field(default_factory=dict)

    def suffer(self, fault: Fault, now: float) -> list[NodeEvent]:
        age_s = 0.0 if fault.at_ns is None else max(0.0, now - fault.at_ns / 1e9)
        events: list[NodeEvent] = []
        if fault.temperature_c is not None:
            self.held_temperature_c = fault.temperature_c
        if fault.condition is not None:
            state = ConditionState.CLEARED if fault.over else ConditionState.RAISED
            self.held[fault.condition] = (state, now - age_s, fault.text or "injected")
        if fault.taken_away_in_s is not None:
            events.append(PreemptionNoticed("simulated", fault.taken_away_in_s, age_s, fault.text))
        if fault.xid is not None:
            # As the driver would word it: its text may hold status words or a recovery action.
            said = parse_message(f"NVRM: Xid (PCI:0000:00:00): {fault.xid}, {fault.text}")
            link_fault, action = None, fault.recovery_action
            if isinstance(said, XidLogged):
                link_fault = said.link_fault
                action = said.recovery_action if action is None else action
            events.append(XidRaised(self.uuid, fault.xid, age_s, fault.text, action, link_fault))
        if fault.xid == FELL_OFF_THE_BUS:
            self.failure = fault.text or "the GPU has fallen off the bus"
        if fault.lost and not self.failure:
            self.failure = fault.text or "the GPU is lost"
            events.append(GpuDisappeared(self.uuid, age_s, self.failure))
        return events

    def conditions(self, now: float) -> Iterator[Condition]:
        """What holds, and what cleared within the last minute."""
        for kind, (state, since, says) in self.held.items():
            if state is ConditionState.RAISED or now - since < CLEARED_TOLD_S:
                gpu = "" if kind in OF_THE_NODE or kind in PORT_KINDS else self.uuid
                device = "simulated-port" if kind in PORT_KINDS else ""
                yield Condition(kind, state, max(0.0, now - since), says, gpu, device)

    def sample(self, now: float) -> GpuSample:
        """Invented but plausible: a busy GPU whose temperature and power wander slowly, each GPU on its own."""
        if self.failure:
            return GpuSample(self.uuid, self.index, GpuHealth.FAILED)
        wave = math.sin(now / 30.0 + self.index)
        held_c = self.held_temperature_c
        temperature_c = round(58.0 + 4.0 * wave, 1) if held_c is None else held_c
        return GpuSample(
            uuid=self.uuid,
            index=self.index,
            health=GpuHealth.HEALTHY,
            temperature_c=temperature_c,
            memory_temperature_c=round(temperature_c + 9.0, 1),
            power_w=round(540.0 + 40.0 * wave, 1),
            utilization_ratio=round(0.94 + 0.05 * wave, 3),
            margin_c=round(_SLOWS_DOWN_AT_C - temperature_c, 1),
        )


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
