"""The feed's columns: what the watchdog makes of samples, and what the console makes of them."""

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from holdfast.api.feed import (
    GpusTold,
    HeatTold,
    Hour,
    IncidentTold,
    JobTold,
    NodeRanks,
    NodeRemark,
    NodesTold,
    PlacesTold,
    RanksTold,
    StepsTold,
)
from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import Incident, IncidentState
from holdfast.api.policy import ModelFlops
from holdfast.api.rankrecord import Phase
from holdfast.api.status import JobPhase, JobStatus, Membership
from holdfast.api.telemetry import GpuHealth, ProcessState, RankSample, StepWork
from holdfast.console.heard import FAULTY, FINE, STEP_UNKNOWN, SUSPECT, UNKNOWN, JobHeard
from holdfast.console.serving.document import line_of, nodes_of, ranks_of
from holdfast.watchdog.server.rankcolumns import SLICE, RankColumns, floats, ranks, steps

JOB = "research/gpt"


def sample(rank: int, **known: Any) -> RankSample:
    values: dict[str, Any] = {
        "step": 7,
        "step_time_s": 2.0,
        "loss": 2.5,
        "grad_norm": 1.0,
        "tokens": 4096,
        "process": ProcessState.RUNNING,
        "phase": Phase.FORWARD,
    } | known
    return RankSample(round=3, rank=rank, progress_age_s=0.1, phase_age_s=0.1, **values)


def looked(samples: Sequence[RankSample], columns: RankColumns | None = None) -> RankColumns:
    columns = columns or RankColumns()
    for _ in columns.look(samples, closely=True):
        pass
    return columns


def status(**changes: Any) -> JobStatus:
    members = Membership(wanted=2, ready=2, spares=0, joined=2)
    known: dict[str, Any] = {
        "job": JOB,
        "phase": JobPhase.RUNNING,
        "reason": "",
        "round": 3,
        "members": members,
        "world_size": 4,
        "step": 7,
        "loss": 2.5,
        "step_time_s": 2.0,
        "restarts": 0,
        "evictions": 0,
        "incidents_open": 0,
        "incidents_total": 0,
        "last_checkpoint": None,
        "avoided_nodes": (),
        "now": 1000.0,
    }
    return JobStatus(**(known | changes))


def heard(columns: RankColumns, *, at: float = 1000.0, order: Sequence[int] = (2, 3, 0, 1)) -> JobHeard:
    """Four ranks on two nodes, reported in this order, as the console hears of them."""
    job = JobHeard(JOB)
    job.hear(JobTold(JOB, status(), ModelFlops(1e9, 1e12), Hour(8.0, "USD")))
    places = (NodeRanks(0, 0, 2), NodeRanks(1, 2, 2))
    job.hear(PlacesTold(JOB, 1, 3, 4, ("node-a", "node-b"), ("r1", ""), places, ranks(order)))
    job.hear(RanksTold(JOB, 1, columns.phase, columns.process))
    job.hear(StepsTold(JOB, 1, at, columns.columns, columns.waited))
    return job


def incident(**changes: Any) -> Incident:
    known: dict[str, Any] = {
        "id": "inc-1",
        "job": JOB,
        "kind": FindingKind.GPU_LOST,
        "culprit": Subject(JOB, node="node-b"),
        "confidence": Confidence.CERTAIN,
        "cause": "gone",
        "state": IncidentState.OPEN,
        "began_at": 990.0,
        "detected_at": 991.0,
        "evidence": (),
    }
    return Incident(**(known | changes))


def test_what_is_not_known_or_no_number_keeps_its_place() -> None:
    assert struct.unpack("<3i", steps([5, None, 2**40])) == (5, -1, 2**31 - 1)
    one, unknown, infinite = struct.unpack("<3f", floats([1.5, None, math.inf]))
    assert (one, infinite) == (1.5, math.inf)
    assert math.isnan(unknown)


def test_what_a_step_was_like_is_read_again_only_where_a_rank_has_made_one() -> None:
    many = [sample(rank) for rank in range(SLICE + 4)]
    columns = looked(many)
    before = columns.columns
    unread = [sample(rank, loss=9.0) for rank in range(SLICE + 4)]  # no step: nobody looks
    assert looked(unread, columns).columns is before
    moved = [*unread[:SLICE], *(sample(rank, loss=3.0, step=8) for rank in range(SLICE, SLICE + 4))]
    losses = np.frombuffer(looked(moved, columns).columns.loss, "<f4")
    assert set(losses[:SLICE]) == {2.5}
    assert set(losses[SLICE:]) == {3.0}
    assert columns.loss() == pytest.approx((2.5 * SLICE + 3.0 * 4) / (SLICE + 4))
    assert columns.step_time_s() == 2.0
    assert looked(many[:3], columns).columns.step == steps([7, 7, 7])


def test_columns_lead_each_value_to_its_rank() -> None:
    job = heard(looked([sample(rank, loss=float(rank), step=rank + 1) for rank in (2, 3, 0, 1)]))
    columns = job.columns()
    assert columns.loss.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert columns.step.tolist() == [1, 2, 3, 4]
    assert columns.node.tolist() == [0, 0, 1, 1]
    assert columns.health.tolist() == [FINE] * 4
    assert columns.phase.tolist() == [int(Phase.FORWARD)] * 4


def test_a_rank_nobody_heard_of_is_unknown_and_columns_of_another_layout_say_nothing() -> None:
    job = heard(looked([sample(2), sample(3)]), order=(2, 3))
    assert job.columns().health.tolist() == [UNKNOWN, UNKNOWN, FINE, FINE]
    assert job.columns().step.tolist() == [STEP_UNKNOWN, STEP_UNKNOWN, 7, 7]
    late = looked([sample(rank, step=99) for rank in range(4)])
    job.hear(StepsTold(JOB, 2, 1001.0, late.columns))
    assert job.columns().step.tolist() == [STEP_UNKNOWN, STEP_UNKNOWN, 7, 7]


def test_health_is_of_the_process_the_node_and_the_open_incidents() -> None:
    states = (ProcessState.RUNNING, ProcessState.STOPPED, ProcessState.GONE, ProcessState.UNKNOWN)
    job = heard(looked([sample(rank, process=states[rank]) for rank in range(4)]), order=range(4))
    assert job.columns().health.tolist() == [FINE, SUSPECT, FAULTY, UNKNOWN]
    job.hear(NodesTold(JOB, 1, (NodeRemark(0, silent=True),)))
    assert job.columns().health.tolist() == [UNKNOWN, UNKNOWN, FAULTY, UNKNOWN]
    job.hear(IncidentTold(JOB, incident()))
    assert job.columns().health.tolist() == [UNKNOWN, UNKNOWN, FAULTY, FAULTY]
    job.hear(IncidentTold(JOB, incident(state=IncidentState.RECOVERED)))
    assert job.columns().health.tolist() == [UNKNOWN, UNKNOWN, FAULTY, UNKNOWN]


def test_the_bytes_are_as_the_contract_says() -> None:
    content = ranks_of(heard(looked([sample(rank) for rank in (2, 3, 0)]), order=(2, 3, 0)))
    version, n = struct.unpack_from("<II", content)
    assert (version, n) == (1, 4)
    assert struct.unpack_from("<4I", content, 8) == (0, 0, 1, 1)
    assert struct.unpack_from("<4I", content, 24) == (7, STEP_UNKNOWN, 7, 7)
    assert content[40:44] == bytes((2, 8, 2, 2))
    assert content[44:48] == bytes((1, 0, 1, 1))
    assert struct.unpack_from("<4f", content, 48)[0] == 2.0
    assert len(content) == 48 + 32


def test_a_point_is_of_all_ranks_and_waiting_is_of_the_time_since_the_one_before() -> None:
    def work(steps: int, waited_s: float) -> StepWork:
        return StepWork(steps, 10.0 * steps, 0.0, 0.0, 0.0, 0.0, waited_s=waited_s)

    losses = (2.0, 3.0, 4.0, math.nan)
    columns = looked([sample(rank, loss=losses[rank], step=5 + rank, work=work(1, 5.0)) for rank in range(4)])
    job = heard(columns, order=range(4))
    point = job.series.newest()
    assert point is not None
    assert (point.step, point.loss_min, point.loss_median, point.loss_max) == (5.0, 2.0, 3.0, 4.0)
    assert point.tokens_s == 4 * 2048.0
    assert point.mfu == pytest.approx(4 * 2048.0 * 1e9 / (4 * 1e12))
    assert point.wait_share == 0.5
    again = looked([sample(rank, step=9, work=work(2, 6.0)) for rank in range(4)], columns)
    job.hear(StepsTold(JOB, 1, 1001.0, again.columns, again.waited))
    newest = job.series.newest()
    assert newest is not None
    assert newest.wait_share == pytest.approx(0.1)
    assert job.told is not None
    line = line_of(job, job.told)
    assert (line.money_h, line.currency, line.tokens_s) == (8.0, "USD", 4 * 2048.0)


def test_waiting_that_is_told_again_is_no_other_and_of_no_time_is_unknown() -> None:
    def work(steps: int, waited_s: float) -> StepWork:
        return StepWork(steps, 10.0 * steps, 0.0, 0.0, 0.0, 0.0, waited_s=waited_s)

    job = heard(looked([sample(rank, work=work(0, 0.0)) for rank in range(4)]))
    first = job.series.newest()
    assert first is not None
    assert math.isnan(first.wait_share), "no time has gone by"
    for at, count, waited_s in ((1001.0, 10, 50.0), (1002.0, 11, 51.0), (1002.0, 11, 51.0)):
        columns = looked([sample(rank, step=8, work=work(count, waited_s)) for rank in range(4)])
        job.hear(StepsTold(JOB, 1, at, columns.columns, columns.waited))
    newest = job.series.newest()
    assert newest is not None
    assert newest.wait_share == pytest.approx(0.1), "of the step since, not of the round"


@pytest.mark.parametrize("phase", [JobPhase.STALLED, JobPhase.RECOVERING, JobPhase.SUSPENDED])
def test_while_no_step_is_made_no_rate_is_known_and_money_goes_on(phase: JobPhase) -> None:
    job = heard(looked([sample(rank) for rank in range(4)]))
    flops = ModelFlops(1e9, 1e12)
    line = line_of(job, JobTold(JOB, status(phase=phase), flops, Hour(10.0, "USD")))
    assert (line.tokens_s, line.mfu) == (None, None)
    assert (line.money_h, line.currency) == (10.0, "USD")
    job.hear(PlacesTold(JOB, 2, None, 0, ("node-a", "node-b"), ("r1", ""), (), b""))
    assert line_of(job, JobTold(JOB, status(), flops, Hour(10.0, "USD"))).money_h == 10.0


def test_the_time_left_is_of_the_steps_that_the_script_still_means_to_make() -> None:
    columns = looked([sample(rank) for rank in range(4)])
    job = heard(columns)
    for at, step in ((1010.0, 12), (1020.0, 17)):
        looked([sample(rank, step=step) for rank in range(4)], columns)
        job.hear(StepsTold(JOB, 1, at, columns.columns, columns.waited))

    def left_s(**said: Any) -> float | None:
        return line_of(job, JobTold(JOB, status(step=17, **said))).left_s

    assert left_s(until_step=117) == 200.0  # ten steps in twenty seconds
    assert left_s(until_step=17) == 0.0
    assert (left_s(until_step=None), left_s(until_step=9)) == (None, None)
    assert left_s(until_step=117, phase=JobPhase.RECOVERING) is None


def test_what_was_told_of_a_node_by_its_index_is_never_said_of_another() -> None:
    job = heard(looked([sample(rank) for rank in range(4)]), order=range(4))
    job.hear(NodesTold(JOB, 1, (NodeRemark(0, avoided="xid 79"),)))
    job.hear(GpusTold(JOB, 1, (("G0",), ("G2",))))
    job.hear(HeatTold(JOB, 1, bytes(2), floats([61.0, 70.0])))
    job.hear(PlacesTold(JOB, 2, 4, 2, ("node-0", "node-b"), ("", ""), (NodeRanks(1, 0, 2),), b""))
    assert [(each.name, each.state, each.gpus) for each in nodes_of(job)] == [
        ("node-0", "heard", ()),
        ("node-b", "heard", ()),
    ]


def test_a_gpu_that_came_has_no_health_before_it_is_told() -> None:
    job = heard(looked([sample(rank) for rank in range(4)]), order=range(4))
    job.hear(GpusTold(JOB, 1, (("G0",), ("G2",))))
    job.hear(HeatTold(JOB, 1, bytes(2), floats([61.0, 70.0])))
    job.hear(GpusTold(JOB, 1, (("G0", "G1"), ("G2",))))
    assert {gpu.state for node in nodes_of(job) for gpu in node.gpus} == {"unknown"}


def test_nodes_with_something_to_say_come_first_with_their_gpus() -> None:
    job = heard(looked([sample(rank) for rank in range(4)]), order=range(4))
    job.hear(GpusTold(JOB, 1, (("G0", "G1"), ("G2",))))
    health = bytes(
        tuple(GpuHealth).index(each) for each in (GpuHealth.HEALTHY, GpuHealth.FAILED, GpuHealth.HEALTHY)
    )
    job.hear(HeatTold(JOB, 1, health, floats([61.04, None, 70.0])))
    job.hear(IncidentTold(JOB, incident(culprit=Subject(JOB, node="node-b", gpu="G2"))))
    job.hear(NodesTold(JOB, 1, (NodeRemark(0, avoided="xid 79"),)))
    blamed, avoided = nodes_of(job)
    assert (blamed.name, blamed.state, blamed.ranks, blamed.rack) == ("node-b", "suspect", (2, 3), None)
    assert blamed.gpus[0].why == "gone"
    assert (avoided.state, avoided.why, avoided.rack) == ("avoided", "xid 79", "r1")
    assert [(gpu.state, gpu.temperature_c) for gpu in avoided.gpus] == [("healthy", 61.0), ("failed", None)]
