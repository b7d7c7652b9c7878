"""GPUs for machines without one: plausible telemetry, and faults that happen on request."""

import math
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from holdfast.agent.conditions.nodes import NODE_KINDS
from holdfast.agent.conditions.ports import PORT_KINDS
from holdfast.agent.kernel.message import XidLogged, parse_message
from holdfast.agent.reading import Reading
from holdfast.agent.sensors.fault_script import FILE_NAME, BadFault, Fault, ScriptTail, inject, parse_fault
from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.telemetry import (
    GpuDisappeared,
    GpuHealth,
    GpuSample,
    NodeEvent,
    PreemptionNoticed,
    Unreadable,
    XidRaised,
)

__all__ = ["Fault", "SimulatedGpus", "gpu_uuid", "inject"]

# Source: https://docs.nvidia.com/deploy/xid-errors/ : XID 79, "GPU has fallen off the bus".
_FELL_OFF_THE_BUS: Final = 79
# Invented, as are all its numbers.
_SLOWS_DOWN_AT_C: Final = 90.0
CLEARED_TOLD_S: Final = 60.0  # as in `Reading`
OF_THE_NODE: Final = NODE_KINDS | {ConditionKind.HOST_MEMORY_ERROR, ConditionKind.NVSWITCH_FAULT}
_UUID_SPACE: Final = uuid.UUID("7b1d7d0e-6c1f-5a43-9a55-6d9d3c1b5f0a")


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
                events.extend(self._happen(line, now))
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

    def _happen(self, line: bytes, now: float) -> list[NodeEvent]:
        try:
            fault = parse_fault(line, len(self._gpus))
        except BadFault as error:
            self._bad_lines += 1
            self._last_bad_line = str(error)
            return []
        return self._gpus[fault.gpu].suffer(fault, now)


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
        if fault.xid == _FELL_OFF_THE_BUS:
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
        temperature_c = self.held_temperature_c
        if temperature_c is None:
            temperature_c = round(58.0 + 4.0 * wave, 1)
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
