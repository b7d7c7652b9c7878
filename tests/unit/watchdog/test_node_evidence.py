"""What an incident of a hang says of its suspect's node: GPUs, conditions, the kernel's log."""

import asyncio
import math

import pytest
from forgetful_store import MemoryStore

from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.event import JobSubmitted, MemberEntered, MemberJoined
from holdfast.api.finding import Evidence
from holdfast.api.nodecondition import FaultPart, Meaning, NodeCondition
from holdfast.api.policy import Policy
from holdfast.api.telemetry import (
    DeviceAnswered,
    GpuHealth,
    GpuSample,
    NodeReport,
    ProcessKilledForMemory,
    XidRaised,
)
from holdfast.watchdog import brain
from holdfast.watchdog.brain.step import TakeStacks
from holdfast.watchdog.detectors.detector import NodeNoted
from holdfast.watchdog.nodeevidence import (
    KERNEL_LINES,
    KERNEL_S,
    LINE_LENGTH_MAX,
    KernelLines,
    node_evidence,
    noted_evidence,
)
from holdfast.watchdog.senses import senses_for
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.watchdog import Watchdog

JOB = "team/gpt"


def gpu(number: int, **fields: object) -> GpuSample:
    return GpuSample(f"GPU-{number}", number, **{"health": GpuHealth.HEALTHY, **fields})  # type: ignore[arg-type]


def report(*gpus: GpuSample, **fields: object) -> NodeReport:
    return NodeReport("n1", "b", 1, gpus=gpus, **fields)  # type: ignore[arg-type]


def test_the_gpus_are_one_line_and_those_that_are_not_well_are_named() -> None:
    gpus = (
        gpu(0, temperature_c=61.0, power_w=410.0, utilization_ratio=0.0),
        gpu(1, temperature_c=70.4, power_w=410.2, utilization_ratio=1.0, throttle=0x1),
        gpu(2, health=GpuHealth.FAILED, throttle=0x40),
    )
    (line,) = node_evidence(report(*gpus), (), heard_at=5.0)
    assert (line.source, line.at) == ("GPUs", 5.0)
    assert line.says == (
        "3 of n1, 2 healthy, 1 failed (GPU-2), 61 to 70 C, 410 W, 0 to 100 % in use, "
        "held down: GPU-2 (NVML reasons 0x40)"
    )


def test_a_node_without_gpus_says_nothing_of_them_and_figures_that_are_none_hurt_nobody() -> None:
    assert node_evidence(report(), (), heard_at=5.0) == ()
    (line,) = node_evidence(report(gpu(0, power_w=math.nan, utilization_ratio=math.inf)), (), heard_at=5.0)
    assert line.says == "1 of n1, 1 healthy, nan W, inf % in use"


def test_what_holds_of_the_node_is_said_plainly_and_what_is_over_is_not() -> None:
    raised = Condition(ConditionKind.NVLINK_DOWN, ConditionState.RAISED, 9.0, "link 3\x1b[2J is down", gpu="GPU-0")
    over = Condition(ConditionKind.DISK_FULL, ConditionState.CLEARED, 9.0, "full")
    many = (over, *[raised] * 7)
    says = [each.says for each in node_evidence(report(conditions=many), (), heard_at=5.0)]
    assert says == [*["n1: NvlinkDown of GPU-0: link 3?[2J is down"] * 5, "n1: 2 more"]


def test_the_newest_lines_of_the_kernel_are_kept_for_a_while_and_no_more_than_a_few() -> None:
    known = KernelLines()
    answered = DeviceAnswered(1, 0, 0, 1, 1, 1, 0.0)
    killed = ProcessKilledForMemory(7, "python", 2.0, "Out of memory: Killed process 7")
    known.take(report(events=(answered, killed, XidRaised("GPU-0", 79, 1.0))), 100.0)
    assert known.of("n1", 100.0) == [(98.0, "Out of memory: Killed process 7")]
    assert known.of("n2", 100.0) == known.of("n1", 99.0 + KERNEL_S) == []
    known.take(report(events=tuple(XidRaised("GPU-0", 31, 0.0, "x" * 9999) for _ in range(50))), 101.0)
    assert known.of("n1", 101.0) == [(101.0, "x" * LINE_LENGTH_MAX)] * KERNEL_LINES


def hosted() -> JobHost:
    watchdog = Watchdog(MemoryStore(), brain=brain, senses_for=senses_for, fenced=lambda reason: None)
    watchdog.start()
    host = watchdog.host(JOB)
    host.demand(JobSubmitted(Policy(job=JOB, nodes_min=1, nodes_max=1)))
    host.demand(MemberJoined("m0", "n1", "b", "10.0.0.1", 1, (4000,), warm=True))
    assert host.job.state.round is not None
    host.demand(MemberEntered("m0", host.job.state.round.number, reentrant=True))
    return host


@pytest.mark.parametrize("named", [True, False])
async def test_an_incident_of_a_hang_has_what_was_last_heard_of_its_suspects_node(named: bool) -> None:
    host = hosted()
    host.take_report(report(gpu(0, temperature_c=61.0), events=(XidRaised("GPU-0", 31, 0.0, "NVRM: Xid 31"),)))
    state = host.job.state
    assert state.round is not None
    (incident,) = state.incidents  # what an XID opens will do for any
    host._take_stacks(TakeStacks(incident.id, state.round, "m0" if named else None))
    await asyncio.sleep(0)
    await asyncio.sleep(0.001)
    (incident,) = host.job.state.incidents
    of_node = [each for each in incident.evidence if each.source in ("GPUs", "kernel log")]
    assert [each.says for each in of_node] == (["1 of n1, 1 healthy, 61 C", "n1: NVRM: Xid 31"] if named else [])


def test_what_others_say_of_the_node_is_told_beside_it() -> None:
    said = NodeCondition("KernelDeadlock", Meaning.EVIDENCE, FaultPart.KERNEL, "Hung", "task \x1b[1m blocked")
    (evidence,) = noted_evidence(NodeNoted("n0", (said,)), 5.0)
    assert evidence == Evidence("node conditions", "n0: KernelDeadlock (Hung): task ?[1m blocked", 5.0)
    assert noted_evidence(None, 5.0) == ()
