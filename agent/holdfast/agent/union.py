"""One picture of the node from sources that tell of the same. Pure: `now` is CLOCK_MONOTONIC in seconds.

The kernel's log and NVML both tell of every XID, within moments of each other. Each raise is told once by each, so
words of different sources about the same number on the same GPU are paired off within `ECHO_S`, and of a pair the
first is kept. That waits for nobody, counts a raise once, and still counts what only one of them told: NVML while
the log cannot be read, the log of what NVML left out.

A GPU that was once seen in a slot is still known by it when it answers no more: that is when most is said of it.

What the second word knows and the first did not is kept: the recovery action that the driver asks for, as the
XID 154 that says so; and which fault of a link it was, which only the log tells, as the second word itself.

Of an exporter beside the driver the driver's own word comes first; the exporter fills what it does not give. An
error that the driver or the kernel told is not told again when the exporter notices it, which may take it half a
minute. While the driver tells no events, what the exporter notices is news unless the kernel told it.
"""

import dataclasses
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from holdfast.agent.kernel.slots import slot_of, unnamed
from holdfast.agent.reading import GpuDetail, Reading
from holdfast.api.condition import Condition, ConditionState
from holdfast.api.nvlink5 import LinkFault
from holdfast.api.telemetry import GpuDisappeared, GpuHealth, GpuSample, NodeEvent, XidRaised
from holdfast.api.xid import RECOVERY_ACTION_CHANGED, RecoveryAction

# Source: https://arxiv.org/abs/2503.11901 (errors of one GPU within 5 s)
ECHO_S: Final = 5.0
_WORDS_KEPT: Final = 256  # of one source about one number on one GPU
EXPORTER_ECHO_S: Final = 120.0
NVML_EVENTS: Final = "nvml-events"  # the source that cannot be read while the driver tells no events


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
        for key, words in tuple(self._alone.items()):
            while words and now - words[0].at > 2 * ECHO_S:
                words.popleft()
            if not words:
                del self._alone[key]
        for _, reading in readings:
            self.learn(reading.details)
        told = []
        for source, reading in readings:
            others = [other for other, _ in readings if other != source]
            events = [news for event in reading.events for news in self._news(source, event, others, now)]
            told.append(dataclasses.replace(reading, events=tuple(events)) if reading.events else reading)
        return told

    def _news(self, source: str, event: NodeEvent, others: Sequence[str], now: float) -> Sequence[NodeEvent]:
        """What is to be told of an event, under the UUID of its GPU where that is known."""
        if not isinstance(event, XidRaised | GpuDisappeared):
            return (event,)
        event = replace(event, gpu=self._uuids.get(event.gpu, event.gpu))
        at, xid = now - event.age_s, event.xid if isinstance(event, XidRaised) else None
        word = _Word(at, event.recovery_action, event.link_fault) if isinstance(event, XidRaised) else _Word(at)
        echoed = [
            (words, each)
            for other in others
            if (words := self._alone.get((other, event.gpu, xid))) is not None
            for each in words
            if abs(each.at - at) <= ECHO_S
        ]
        if not echoed:
            self._alone.setdefault((source, event.gpu, xid), deque(maxlen=_WORDS_KEPT)).append(word)
            return (event,)
        words, first = echoed[0]
        words.remove(first)
        if word.link_fault is not None and first.link_fault is None:
            return (event,)
        known = (None, RecoveryAction.NONE, first.recovery_action)
        if not isinstance(event, XidRaised) or word.recovery_action in known:
            return ()
        return (XidRaised(event.gpu, RECOVERY_ACTION_CHANGED, event.age_s, event.text, word.recovery_action),)


class GpuUnion:
    """Remembers which errors were told while an exporter may still notice them. `now` never goes back."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, int], float] = {}

    def unite(self, first: Reading, filling: Reading, now: float) -> Reading:
        """`first` with the gaps filled from the exporter's `filling`, GPU by GPU as their UUIDs say."""
        self._told = {key: at for key, at in self._told.items() if now - at < EXPORTER_ECHO_S}
        for event in first.events:
            if isinstance(event, XidRaised):
                self._told[event.gpu, event.xid] = now
        spoken = {sample.uuid for sample in first.gpus if sample.health is not GpuHealth.UNKNOWN}
        if any(each.source == NVML_EVENTS for each in first.unreadable):
            spoken = set()
        news = tuple(
            event
            for event in filling.events
            if not isinstance(event, XidRaised)
            or (event.gpu not in spoken and (event.gpu, event.xid) not in self._told)
        )
        samples = {sample.uuid: sample for sample in filling.gpus}
        details = {detail.uuid: detail for detail in filling.details}
        gpus = tuple(_filled_sample(each, samples.pop(each.uuid, None)) for each in first.gpus)
        known = tuple(_filled_detail(each, details.pop(each.uuid, None)) for each in first.details)
        # Each condition once. What one of them holds to be over and the other does not, is not over.
        conditions: dict[tuple[str, str, str], Condition] = {}
        for each in first.conditions + filling.conditions:
            key = (each.kind, each.gpu, each.device)
            if key not in conditions or conditions[key].state is ConditionState.CLEARED:
                conditions[key] = each
        return dataclasses.replace(
            first,
            gpus=(*gpus, *samples.values()),
            details=(*known, *details.values()),
            events=first.events + news,
            unreadable=first.unreadable + filling.unreadable,
            conditions=tuple(conditions.values()),
        )


def _filled_sample(sample: GpuSample, filler: GpuSample | None) -> GpuSample:
    """A GPU that the driver cannot judge is judged by the exporter; a failed one stays failed."""
    if filler is None:
        return sample
    known = {name: value for name in sample.__struct_fields__ if (value := getattr(sample, name)) is not None}
    if sample.health is GpuHealth.UNKNOWN:
        del known["health"]
    return replace(filler, **known)


def _filled_detail(detail: GpuDetail, filler: GpuDetail | None) -> GpuDetail:
    if filler is None:
        return detail
    names = [each.name for each in dataclasses.fields(detail)]
    known = {name: value for name in names if (value := getattr(detail, name)) not in (None, ())}
    return dataclasses.replace(filler, **known)
