"""What is known of a suspect's node, as evidence beside where its ranks stand: GPUs, conditions, the kernel's log.

Agents report it all the time, so that nobody has to be asked. Pure: no I/O, no clock.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from holdfast.api.condition import ConditionState
from holdfast.api.finding import Evidence
from holdfast.api.telemetry import (
    GpuDisappeared,
    GpuHealth,
    GpuSample,
    NodeReport,
    PreemptionNoticed,
    ProcessKilledForMemory,
    XidRaised,
)
from holdfast.watchdog.detectors.detector import NodeNoted
from holdfast.watchdog.detectors.slowcause import HARMLESS_THROTTLE
from holdfast.watchdog.wording import in_words

KERNEL_LINES: Final = 5
KERNEL_S: Final = 600.0
CONDITIONS: Final = 5
LINE_LENGTH_MAX: Final = 300

_OF_THE_KERNEL: Final = (XidRaised, GpuDisappeared, ProcessKilledForMemory, PreemptionNoticed)


class KernelLines:
    """The newest lines of each node's kernel log that an agent told of, with when they were written."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[tuple[float, str]]] = {}

    def take(self, report: NodeReport, now: float) -> None:
        """What `report` has of them."""
        for event in report.events:
            if isinstance(event, _OF_THE_KERNEL) and event.text:
                known = self._lines.setdefault(report.node, deque(maxlen=KERNEL_LINES))
                known.append((now - event.age_s, event.text[:LINE_LENGTH_MAX]))

    def of(self, node: str, now: float) -> list[tuple[float, str]]:
        """Those of the last `KERNEL_S` seconds."""
        return [(at, line) for at, line in self._lines.get(node, ()) if at >= now - KERNEL_S]


def node_evidence(
    report: NodeReport, kernel: Sequence[tuple[float, str]], *, heard_at: float
) -> tuple[Evidence, ...]:
    """What the node's newest report, of `heard_at`, says of its GPUs and conditions; and its `kernel` lines."""
    return (
        *(Evidence("GPUs", says, heard_at) for says in _gpus(report)),
        *(Evidence("conditions", says, heard_at) for says in _conditions(report)),
        *(Evidence("kernel log", f"{report.node}: {_plain(line)}", at) for at, line in kernel),
    )


def noted_evidence(noted: NodeNoted | None, now: float) -> tuple[Evidence, ...]:
    """What others say of the node, as conditions of it; None: nothing."""
    if noted is None:
        return ()
    return tuple(
        Evidence("node conditions", _plain(f"{noted.node}: {each.type} ({each.reason}): {each.says}"), now)
        for each in noted.conditions[:CONDITIONS]
    )


def _gpus(report: NodeReport) -> Iterator[str]:
    gpus = report.gpus
    if not gpus:
        return
    parts = [f"{len(gpus)} of {report.node}"]
    for health in GpuHealth:
        if ids := [each.uuid for each in gpus if each.health is health]:
            sound = health is GpuHealth.HEALTHY
            parts.append(f"{len(ids)} {health.value.lower()}" + ("" if sound else f" ({_plain(in_words(ids))})"))
    parts += [
        *_range((each.temperature_c for each in gpus), "C"),
        *_range((each.power_w for each in gpus), "W"),
        *_range(
            (100.0 * each.utilization_ratio for each in gpus if each.utilization_ratio is not None), "% in use"
        ),
    ]
    held = [f"{each.uuid} (NVML reasons {each.throttle:#x})" for each in gpus if _is_held_down(each)]
    if held:
        parts.append(f"held down: {_plain(in_words(held))}")
    yield ", ".join(parts)


def _is_held_down(gpu: GpuSample) -> bool:
    return gpu.throttle is not None and bool(gpu.throttle & ~HARMLESS_THROTTLE)


def _range(values: Iterable[float | None], unit: str) -> Iterator[str]:
    told = [each for each in values if each is not None]
    if told:
        least, most = f"{min(told):.0f}", f"{max(told):.0f}"
        yield f"{least} {unit}" if least == most else f"{least} to {most} {unit}"


def _conditions(report: NodeReport) -> Iterator[str]:
    raised = [each for each in report.conditions if each.state is ConditionState.RAISED]
    for each in raised[:CONDITIONS]:
        of = f" of {each.gpu or each.device}" if each.gpu or each.device else ""
        yield _plain(f"{report.node}: {each.kind.value}{of}: {each.says}"[:LINE_LENGTH_MAX])
    if len(raised) > CONDITIONS:
        yield f"{report.node}: {len(raised) - CONDITIONS} more"


def _plain(says: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in says)
