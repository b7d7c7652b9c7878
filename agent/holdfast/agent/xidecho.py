"""One error that two sources tell of is one. Pure.

The kernel's log and NVML both tell of every XID, within moments of each other. Each raise is told once by each, so
words of different sources about the same number on the same GPU are paired off within `ECHO_S`, and of a pair the
first is kept. That waits for nobody, counts a raise once, and still counts what only one of them told: NVML while
the log cannot be read, the log of what NVML left out.

A GPU that was once seen in a slot is still known by it when it answers no more: that is when most is said of it.

What the second word knows and the first did not is kept: the recovery action that the driver asks for, as the
XID 154 that says so; and which fault of a link it was, which only the log tells, as the second word itself.
"""

import dataclasses
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from holdfast.agent.pciaddress import slot_of, unnamed
from holdfast.agent.sensors.gpu_detail import GpuDetail
from holdfast.agent.sensors.sensor import Reading
from holdfast.api.nvlink5 import LinkFault
from holdfast.api.telemetry import GpuDisappeared, NodeEvent, XidRaised
from holdfast.api.xid import RECOVERY_ACTION_CHANGED, RecoveryAction

# Source: https://arxiv.org/abs/2503.11901 (errors of one GPU within 5 s)
ECHO_S: Final = 5.0
_WORDS_KEPT: Final = 256  # of one source about one number on one GPU


@dataclass(frozen=True, slots=True)
class _Word:
    """When one source said it (CLOCK_MONOTONIC, seconds), and what came with it."""

    at: float
    recovery_action: int | None = None
    link_fault: LinkFault | None = None


class XidEcho:
    """Remembers for `ECHO_S` seconds what nobody else has told yet, and for good which GPU is in which slot."""

    def __init__(self) -> None:
        self._alone: dict[tuple[str, str, int | None], deque[_Word]] = {}  # by source, GPU and XID
        self._uuids: dict[str, str] = {}  # by the name that a GPU has by its slot

    def learn(self, details: Iterable[GpuDetail]) -> None:
        """Take in which GPUs are seen, by whomever."""
        slots = ((slot_of(detail.pci_bus_id or ""), detail.uuid) for detail in details)
        self._uuids.update((unnamed(slot), uuid) for slot, uuid in slots if slot is not None)

    def once(self, readings: Sequence[tuple[str, Reading]], now: float) -> list[Reading]:
        """The readings of all sensors, given with their names, with every error in one of them only."""
        self._forget(now)
        for _, reading in readings:
            self.learn(reading.details)
        sources = [source for source, _ in readings]
        return [self._heard(source, reading, sources, now) for source, reading in readings]

    def _forget(self, now: float) -> None:
        for key, words in tuple(self._alone.items()):
            while words and now - words[0].at > 2 * ECHO_S:
                words.popleft()
            if not words:
                del self._alone[key]

    def _heard(self, source: str, reading: Reading, sources: Sequence[str], now: float) -> Reading:
        if not reading.events:
            return reading
        others = [each for each in sources if each != source]
        events: list[NodeEvent] = []
        for event in reading.events:
            if isinstance(event, XidRaised | GpuDisappeared):
                named = replace(event, gpu=self._uuids.get(event.gpu, event.gpu))
                events.extend(self._told(source, named, others, now))
            else:
                events.append(event)
        return dataclasses.replace(reading, events=tuple(events))

    def _told(
        self, source: str, event: XidRaised | GpuDisappeared, others: Sequence[str], now: float
    ) -> Sequence[NodeEvent]:
        at = now - event.age_s
        raised = event if isinstance(event, XidRaised) else None
        word = _Word(at) if raised is None else _Word(at, raised.recovery_action, raised.link_fault)
        xid = None if raised is None else raised.xid
        first = self._taken([(other, event.gpu, xid) for other in others], at)
        if first is None:
            self._alone.setdefault((source, event.gpu, xid), deque(maxlen=_WORDS_KEPT)).append(word)
            return (event,)
        if word.link_fault is not None and first.link_fault is None:
            return (event,)
        if word.recovery_action in (None, RecoveryAction.NONE, first.recovery_action):
            return ()
        return (XidRaised(event.gpu, RECOVERY_ACTION_CHANGED, event.age_s, event.text, word.recovery_action),)

    def _taken(self, keys: Iterable[tuple[str, str, int | None]], at: float) -> _Word | None:
        """The first word under `keys` that a word said at that time echoes. It is taken out."""
        for words in (self._alone[key] for key in keys if key in self._alone):
            first = next((each for each in words if abs(each.at - at) <= ECHO_S), None)
            if first is not None:
                words.remove(first)
                return first
        return None
