"""What follows from the kernel's messages over time: events that happened once and conditions that hold. Pure.

`at` and `now` are CLOCK_MONOTONIC in seconds.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.agent.kernelmessage import (
    DriverLoaded,
    FellOffTheBus,
    KernelMessage,
    KilledForMemory,
    LinkChanged,
    MemoryFault,
    PcieFatal,
    SwitchFault,
    XidLogged,
)
from holdfast.agent.pciaddress import unnamed
from holdfast.agent.sensors.standing import Held, StandingConditions
from holdfast.api.condition import AllClear, Condition, ConditionKind
from holdfast.api.telemetry import GpuDisappeared, NodeEvent, ProcessKilledForMemory, XidRaised
from holdfast.api.xid import FELL_OFF_THE_BUS, RecoveryAction

# A cable that is seated anew goes down and up: two changes. The third within the window is no hand's work.
FLAPS: Final = 3
FLAP_WINDOW_S: Final = 600.0
CALM_S: Final = 3600.0
_DEVICES_MAX: Final = 64
# Of one killing the kernel writes two messages, within milliseconds.
_SAME_KILLING_S: Final = 5.0
_KILLINGS_KEPT: Final = 64

UNTIL_BOOT: Final = (ConditionKind.NVSWITCH_FAULT, ConditionKind.PCIE_FATAL, ConditionKind.HOST_MEMORY_ERROR)


@dataclass(slots=True)
class _Port:
    """When a network port changed lately."""

    changes: deque[float]


class KernelFaults:
    """Takes messages in, in their order, and gives events and conditions out."""

    def __init__(self, name_of: Callable[[str], str]) -> None:
        """`name_of` gives the UUID of the GPU in a PCI slot, or "" where there is none or it is Unknown."""
        self._name_of = name_of
        self._standing = StandingConditions()
        self._ports: OrderedDict[str, _Port] = OrderedDict()
        self._killings: OrderedDict[int, float] = OrderedDict()

    def remember(self, held: Sequence[Held], *, rebooted: bool, now: float) -> None:
        """Take up what held before this agent started. What lasts until the next boot is over if there was one."""
        for each in held:
            since = now if rebooted else each.since
            self._standing.hold(each.kind, each.says, since, gpu=each.gpu, device=each.device)
            if rebooted:
                self._standing.clear(each.kind, "the node has booted since", now, gpu=each.gpu, device=each.device)
            elif each.kind is ConditionKind.LINK_FLAPPING:
                self._port(each.device).changes.append(now)

    def held(self) -> tuple[Held, ...]:
        """What holds, to be remembered."""
        return self._standing.held()

    def all_clear(self, *, whole: bool, calm: bool) -> tuple[AllClear, ...]:
        """`whole`: all of this boot's messages were taken in; `calm`: an hour's were, as they came."""
        told = (*(UNTIL_BOOT if whole else ()), *((ConditionKind.LINK_FLAPPING,) if calm else ()))
        held = self._standing.held()
        parts = {kind: tuple((each.gpu, each.device) for each in held if each.kind is kind) for kind in told}
        return tuple(AllClear(kind, parts[kind]) for kind in told)

    def take(self, message: KernelMessage, at: float, now: float) -> NodeEvent | None:
        """What happened at `at`; conditions are told by `conditions`."""
        age_s = max(0.0, now - at)
        match message:
            case XidLogged(slot=slot, xid=xid, text=text):
                action, link = message.recovery_action, message.link_fault
                return XidRaised(self._gpu(slot), xid, age_s, text, action, link)
            case FellOffTheBus(slot=slot, text=text):
                return GpuDisappeared(self._gpu(slot), age_s, text)
            case KilledForMemory(pid=pid, name=name, text=text):
                return None if self._told(pid, at) else ProcessKilledForMemory(pid, name, age_s, text)
            case LinkChanged():
                self._change(message, at)
            case SwitchFault(switch=switch, sxid=sxid, text=text):
                self._standing.hold(ConditionKind.NVSWITCH_FAULT, f"SXid {sxid}: {text}", at, device=switch)
            case PcieFatal(slot=slot, text=text):
                self._standing.hold(ConditionKind.PCIE_FATAL, text, at, gpu=self._name_of(slot), device=slot)
            case MemoryFault(text=text):
                self._standing.hold(ConditionKind.HOST_MEMORY_ERROR, text, at)
        return None

    def conditions(self, now: float) -> tuple[Condition, ...]:
        """All that hold, and those cleared less than a minute ago."""
        for device, port in tuple(self._ports.items()):
            if now - port.changes[-1] >= CALM_S:
                del self._ports[device]
                calm = f"no change of {device} for an hour"
                self._standing.clear(ConditionKind.LINK_FLAPPING, calm, now, device=device)
        return self._standing.report(now)

    def _gpu(self, slot: str) -> str:
        return self._name_of(slot) or unnamed(slot)

    def _told(self, pid: int, at: float) -> bool:
        before = self._killings.pop(pid, None)
        self._killings[pid] = at
        if len(self._killings) > _KILLINGS_KEPT:
            self._killings.popitem(last=False)
        return before is not None and abs(at - before) <= _SAME_KILLING_S

    def _port(self, device: str) -> _Port:
        port = self._ports.setdefault(device, _Port(deque(maxlen=FLAPS)))
        self._ports.move_to_end(device)
        return port

    def _change(self, message: LinkChanged, at: float) -> None:
        if message.device not in self._ports and len(self._ports) >= _DEVICES_MAX:
            return
        changes = self._port(message.device).changes
        changes.append(at)
        if len(changes) == FLAPS and at - changes[0] <= FLAP_WINDOW_S:
            says = f"{message.device} changed {FLAPS} times within {at - changes[0]:.0f} s: {message.text}"
            self._standing.hold(ConditionKind.LINK_FLAPPING, says, at, device=message.device)


class StillLost:
    """The GPUs that fell off the bus and did not come back, by messages from before the agent started."""

    def __init__(self) -> None:
        self._lost: dict[str, tuple[KernelMessage, float]] = {}

    def take(self, message: KernelMessage, at: float) -> None:
        """Take in one message, in its order."""
        match message:
            case XidLogged(slot=slot, xid=xid) if xid == FELL_OFF_THE_BUS:
                self._lost[slot] = (message, at)
            case FellOffTheBus(slot=slot):
                self._lost.setdefault(slot, (message, at))
            case XidLogged(slot=slot, recovery_action=RecoveryAction.NONE):
                self._lost.pop(slot, None)
            case DriverLoaded():
                self._lost.clear()

    def told(self, before: float) -> tuple[tuple[KernelMessage, float], ...]:
        """The messages from `before` that time which still hold, and when they were said."""
        return tuple((message, at) for message, at in self._lost.values() if at < before)
