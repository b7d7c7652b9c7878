"""What follows from the kernel's messages over time: events that happened once and conditions that hold. Pure.

`at` and `now` are CLOCK_MONOTONIC in seconds.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.agent.conditions.book import ConditionBook, Held
from holdfast.agent.kernel.message import (
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
from holdfast.agent.kernel.slots import unnamed
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
KERNEL_KINDS: Final = frozenset((*UNTIL_BOOT, ConditionKind.LINK_FLAPPING))


class KernelFaults:
    """Takes messages in, in their order, and gives events out. `book` has the conditions."""

    def __init__(self, name_of: Callable[[str], str]) -> None:
        """`name_of` gives the UUID of the GPU in a PCI slot, or "" where there is none or it is Unknown."""
        self.book = ConditionBook()
        self._name_of = name_of
        self._changes: OrderedDict[str, deque[float]] = OrderedDict()  # when a network port changed lately
        self._killings: OrderedDict[int, float] = OrderedDict()

    def take_up(self, held: Sequence[Held], *, rebooted: bool, now: float) -> None:
        """Take up what held before this agent started. What lasts until the next boot is over if there was one."""
        for each in held:
            since = now if rebooted else each.since
            self.book.hold(each.kind, each.says, since, gpu=each.gpu, device=each.device)
            if rebooted:
                self.book.clear(each.kind, "the node has booted since", now, gpu=each.gpu, device=each.device)
            elif each.kind is ConditionKind.LINK_FLAPPING:
                self._port(each.device).append(now)

    def take(self, message: KernelMessage, at: float, now: float) -> NodeEvent | None:
        """What happened at `at`; a condition is raised in the book."""
        age_s = max(0.0, now - at)
        match message:
            case XidLogged(slot=slot, xid=xid, text=text):
                gpu = self._name_of(slot) or unnamed(slot)
                return XidRaised(gpu, xid, age_s, text, message.recovery_action, message.link_fault)
            case FellOffTheBus(slot=slot, text=text):
                return GpuDisappeared(self._name_of(slot) or unnamed(slot), age_s, text)
            case KilledForMemory(pid=pid, name=name, text=text):
                before = self._killings.pop(pid, None)
                self._killings[pid] = at
                if len(self._killings) > _KILLINGS_KEPT:
                    self._killings.popitem(last=False)
                is_told = before is not None and abs(at - before) <= _SAME_KILLING_S
                killed = ProcessKilledForMemory(pid, name, age_s, text, message.own_limit)
                return None if is_told else killed
            case LinkChanged(device=device, text=text):
                if device in self._changes or len(self._changes) < _DEVICES_MAX:
                    changes = self._port(device)
                    changes.append(at)
                    if len(changes) == FLAPS and at - changes[0] <= FLAP_WINDOW_S:
                        says = f"{device} changed {FLAPS} times within {at - changes[0]:.0f} s: {text}"
                        self.book.hold(ConditionKind.LINK_FLAPPING, says, at, device=device)
            case SwitchFault(switch=switch, sxid=sxid, text=text):
                self.book.hold(ConditionKind.NVSWITCH_FAULT, f"SXid {sxid}: {text}", at, device=switch)
            case PcieFatal(slot=slot, text=text):
                self.book.hold(ConditionKind.PCIE_FATAL, text, at, gpu=self._name_of(slot), device=slot)
            case MemoryFault(text=text):
                self.book.hold(ConditionKind.HOST_MEMORY_ERROR, text, at)
        return None

    def conditions(self, now: float) -> tuple[Condition, ...]:
        """All that hold, and those cleared less than a minute ago."""
        for device, changes in tuple(self._changes.items()):
            if now - changes[-1] >= CALM_S:
                del self._changes[device]
                says = f"no change of {device} for an hour"
                self.book.clear(ConditionKind.LINK_FLAPPING, says, now, device=device)
        return self.book.report(now)

    def all_clear(self, *, whole: bool, calm: bool) -> tuple[AllClear, ...]:
        """`whole`: all of this boot's messages were taken in; `calm`: an hour's were, as they came.

        What the kernel did not say did not happen: so a kind is clear but for the parts of which it holds.
        """
        told = (*(UNTIL_BOOT if whole else ()), *((ConditionKind.LINK_FLAPPING,) if calm else ()))
        held = self.book.held()
        return tuple(
            AllClear(kind, tuple((each.gpu, each.device) for each in held if each.kind is kind)) for kind in told
        )

    def _port(self, device: str) -> deque[float]:
        changes = self._changes.setdefault(device, deque(maxlen=FLAPS))
        self._changes.move_to_end(device)
        return changes


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
