"""One error that two sources tell of is one. Pure.

The kernel's log and NVML both tell of every XID, within moments of each other. Each raise is told once by each, so
words of different sources about the same number on the same GPU are paired off within `ECHO_S`, and of a pair the
first is kept. That waits for nobody, counts a raise once, and still counts what only one of them told: NVML while
the log cannot be read, the log of what NVML left out.

What the second word knows and the first did not, the recovery action that the driver asks for, is kept as the
XID 154 that says so.
"""

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from holdfast.agent.pciaddress import slot_of, unnamed
from holdfast.agent.sensors.sensor import Reading
from holdfast.api.telemetry import GpuDisappeared, NodeEvent, XidRaised
from holdfast.api.xid import RECOVERY_ACTION_CHANGED, RecoveryAction

# Source: https://arxiv.org/abs/2503.11901 (errors of one GPU within 5 s)
ECHO_S: Final = 5.0
_WORDS_KEPT: Final = 1024


@dataclass(frozen=True, slots=True)
class _Word:
    """What one source said: the XID, None for a GPU that is lost, and the recovery action with it."""

    source: str
    gpu: str
    xid: int | None
    at: float
    recovery_action: int | None = None


class XidEcho:
    """Remembers for `ECHO_S` seconds what nobody else has told yet."""

    def __init__(self) -> None:
        self._alone: deque[_Word] = deque(maxlen=_WORDS_KEPT)

    def once(self, readings: Sequence[tuple[str, Reading]], now: float) -> list[Reading]:
        """The readings of all sensors, given with their names, with every error in one of them only."""
        while self._alone and now - self._alone[0].at > 2 * ECHO_S:
            self._alone.popleft()
        if not any(reading.events for _, reading in readings):
            return [reading for _, reading in readings]
        uuids = _uuids(reading for _, reading in readings)
        return [self._heard(source, reading, uuids, now) for source, reading in readings]

    def _heard(self, source: str, reading: Reading, uuids: Mapping[str, str], now: float) -> Reading:
        events: list[NodeEvent] = []
        for event in reading.events:
            if isinstance(event, XidRaised | GpuDisappeared):
                named = replace(event, gpu=uuids.get(event.gpu, event.gpu))
                events.extend(self._told(source, named, now))
            else:
                events.append(event)
        return dataclasses.replace(reading, events=tuple(events))

    def _told(self, source: str, event: XidRaised | GpuDisappeared, now: float) -> Sequence[NodeEvent]:
        xid, action = (event.xid, event.recovery_action) if isinstance(event, XidRaised) else (None, None)
        word = _Word(source, event.gpu, xid, now - event.age_s, action)
        first = next((each for each in self._alone if _is_echo(each, word)), None)
        if first is None:
            self._alone.append(word)
            return (event,)
        self._alone.remove(first)
        if action in (None, RecoveryAction.NONE, first.recovery_action):
            return ()
        return (XidRaised(event.gpu, RECOVERY_ACTION_CHANGED, event.age_s, event.text, action),)


def _is_echo(first: _Word, second: _Word) -> bool:
    same = (first.gpu, first.xid) == (second.gpu, second.xid)
    return same and first.source != second.source and abs(first.at - second.at) <= ECHO_S


def _uuids(readings: Iterable[Reading]) -> dict[str, str]:
    """From the name a GPU has by its slot to its UUID, as far as the driver tells."""
    details = (detail for reading in readings for detail in reading.details if detail.pci_bus_id)
    slots = ((slot_of(detail.pci_bus_id or ""), detail.uuid) for detail in details)
    return {unnamed(slot): uuid for slot, uuid in slots if slot is not None}
