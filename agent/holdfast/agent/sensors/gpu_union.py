"""One picture of the GPUs from the driver itself and from an exporter beside it. Pure.

The driver's own word comes first; the exporter fills what it does not give. An error that the driver or the kernel
told is not told again when the exporter notices it, which may take it half a minute. While the driver tells no
events, what the exporter notices is news unless the kernel told it.
"""

import dataclasses
from typing import Final

import msgspec

from holdfast.agent.sensors.gpu_detail import GpuDetail
from holdfast.agent.sensors.sensor import Reading
from holdfast.api.condition import Condition, ConditionState
from holdfast.api.telemetry import GpuHealth, GpuSample, NodeEvent, XidRaised

ECHO_S: Final = 120.0
NVML_EVENTS: Final = "nvml-events"  # the source that cannot be read while the driver tells no events


class GpuUnion:
    """`now` is CLOCK_MONOTONIC in seconds and never goes back."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, int], float] = {}

    def unite(self, first: Reading, filling: Reading, now: float) -> Reading:
        """`first` with the gaps filled from the exporter's `filling`, GPU by GPU as their UUIDs say."""
        self._told = {key: at for key, at in self._told.items() if now - at < ECHO_S}
        for event in first.events:
            if isinstance(event, XidRaised):
                self._told[event.gpu, event.xid] = now
        spoken = {sample.uuid for sample in first.gpus if sample.health is not GpuHealth.UNKNOWN}
        if any(each.source == NVML_EVENTS for each in first.unreadable):
            spoken = set()
        news = tuple(event for event in filling.events if self._is_news(event, spoken))
        return dataclasses.replace(
            first,
            gpus=_samples(first.gpus, filling.gpus),
            details=_details(first.details, filling.details),
            events=first.events + news,
            unreadable=first.unreadable + filling.unreadable,
            conditions=_conditions(first.conditions + filling.conditions),
        )

    def _is_news(self, event: NodeEvent, spoken: set[str]) -> bool:
        if not isinstance(event, XidRaised):
            return True
        return event.gpu not in spoken and (event.gpu, event.xid) not in self._told


def _samples(first: tuple[GpuSample, ...], filling: tuple[GpuSample, ...]) -> tuple[GpuSample, ...]:
    fillers = {sample.uuid: sample for sample in filling}
    united = [_filled_sample(sample, fillers.pop(sample.uuid, None)) for sample in first]
    return (*united, *fillers.values())


def _filled_sample(sample: GpuSample, filler: GpuSample | None) -> GpuSample:
    """A GPU that the driver cannot judge is judged by the exporter; a failed one stays failed."""
    if filler is None:
        return sample
    known = {name: value for name in sample.__struct_fields__ if (value := getattr(sample, name)) is not None}
    if sample.health is GpuHealth.UNKNOWN:
        del known["health"]
    return msgspec.structs.replace(filler, **known)


def _conditions(both: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Each once. What one of them holds to be over and the other does not, is not over."""
    united: dict[tuple[str, str, str], Condition] = {}
    for each in both:
        key = (each.kind, each.gpu, each.device)
        if key not in united or united[key].state is ConditionState.CLEARED:
            united[key] = each
    return tuple(united.values())


def _details(first: tuple[GpuDetail, ...], filling: tuple[GpuDetail, ...]) -> tuple[GpuDetail, ...]:
    fillers = {detail.uuid: detail for detail in filling}
    united = [_filled_detail(detail, fillers.pop(detail.uuid, None)) for detail in first]
    return (*united, *fillers.values())


def _filled_detail(detail: GpuDetail, filler: GpuDetail | None) -> GpuDetail:
    if filler is None:
        return detail
    names = [each.name for each in dataclasses.fields(detail)]
    known = {name: value for name in names if (value := getattr(detail, name)) not in (None, ())}
    return dataclasses.replace(filler, **known)
