"""Jobs that half fit: one of them runs, the others wait without holding a node, and everybody is tried in turn."""

import random

import pytest
from gang_cluster import GangCluster, Wanted
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_builders import document, job_object, pending_pod, spec_of

from holdfast.operator.decide.admission import SHORT_S, TURN_S, contender

LONG_S = 4 * TURN_S


def in_turn(names: list[str]) -> str:
    """The scheduler takes one pod of each job after the other: both get half."""
    return min(names, key=lambda name: (int(name.rpartition("-")[2]), name))


def said(cluster: GangCluster, name: str) -> list[str]:
    return [
        event.reason for job, event in cluster.events if job == name and event.reason in ("Yielded", "Readmitted")
    ]


def test_of_two_jobs_that_each_half_fit_the_older_one_runs_and_the_other_one_holds_nothing() -> None:
    jobs = {"old": Wanted(4), "new": Wanted(4, created_at=60.0)}
    cluster = GangCluster(jobs, capacity=4, choose=in_turn)
    cluster.live_for(SHORT_S)
    assert (cluster.placed("old"), cluster.placed("new")) == (2, 2)
    cluster.live_for(30.0)
    assert cluster.running == {"old"}
    assert cluster.placed("new") == 0
    assert said(cluster, "new") == ["Yielded", "Readmitted"]
    assert not [event for name, event in cluster.events if name == "new" and "research" in event.message]
    assert said(cluster, "old") == []


def test_while_the_first_one_is_short_the_others_make_no_pods_and_say_why() -> None:
    cluster = GangCluster({"a-huge": Wanted(9), "b": Wanted(4), "c": Wanted(4)}, capacity=6, choose=in_turn)
    cluster.live_for(100.0)
    for name in ("b", "c"):
        found = cluster.condition(name)
        assert (found["status"], found["reason"]) == ("False", "Yielded")
        assert "huge" not in found["message"], "another job is nobody's business"
    assert {name.rpartition("-")[0] for name in cluster.pods} == {"a-huge"}
    assert said(cluster, "a-huge") == []


def test_who_yielded_runs_when_the_other_one_is_done() -> None:
    cluster = GangCluster({"a": Wanted(4), "b": Wanted(4)}, capacity=4, choose=in_turn)
    cluster.live_for(100.0)
    assert cluster.running == {"a"}
    cluster.finish("a")
    cluster.live_for(60.0)
    assert cluster.running == {"b"}
    assert said(cluster, "b")[-1] == "Readmitted"


def test_the_higher_priority_goes_before_the_older_one() -> None:
    jobs = {"old": Wanted(4), "urgent": Wanted(4, priority=1000, created_at=60.0)}
    cluster = GangCluster(jobs, capacity=4, choose=in_turn)
    cluster.live_for(100.0)
    assert cluster.running == {"urgent"}


def test_one_that_never_fits_lets_a_smaller_one_run_after_its_turn() -> None:
    cluster = GangCluster({"huge": Wanted(9), "small": Wanted(3)}, capacity=4, choose=in_turn)
    cluster.live_for(100.0)
    assert cluster.running == set()
    cluster.live_for(TURN_S)
    assert cluster.running == {"small"}
    cluster.live_for(LONG_S)
    assert cluster.running == {"small"}
    assert cluster.deleted.count("small-0") <= 1


def test_one_that_never_fits_costs_a_job_that_comes_later_no_second_turn() -> None:
    jobs = {"huge": Wanted(9), "early": Wanted(3, created_at=1.0), "late": Wanted(3, created_at=10 * TURN_S)}
    cluster = GangCluster(jobs, capacity=4, choose=in_turn)
    late, cluster.jobs = cluster.jobs["late"], {name: cluster.jobs[name] for name in ("huge", "early")}
    cluster.live_for(100.0 + TURN_S)
    assert cluster.running == {"early"}
    cluster.finish("early")
    cluster.live_for(100.0)
    found = cluster.condition("huge")
    assert (found["status"], found["reason"]) == ("True", "Retried")

    cluster.jobs["late"] = late
    cluster.live_for(2 * SHORT_S)
    assert cluster.running == {"late"}
    assert said(cluster, "late") == []
    assert said(cluster, "huge") == ["Yielded", "Readmitted"] * 2


def test_what_trains_is_never_touched_though_one_of_higher_priority_half_fits() -> None:
    jobs = {"here": Wanted(2), "urgent": Wanted(4, priority=1000), "late": Wanted(4, priority=2000)}
    cluster = GangCluster(jobs, capacity=5, choose=lambda names: min(names, key=lambda name: "here" not in name))
    cluster.live_for(LONG_S)
    assert "here" in cluster.running
    assert not [name for name in cluster.deleted if name.startswith("here")]


@pytest.mark.parametrize(("phase", "contends"), [("Pending", True), ("Running", False), ("Stalled", False)])
def test_a_job_that_trains_does_not_contend_though_nobody_sees_its_steps(phase: str, contends: bool) -> None:
    job = job_object(status={"phase": phase})
    assert (contender(job, spec_of(document()), [pending_pod(0)]) is not None) == contends


def test_a_job_alone_waits_as_long_as_it_likes() -> None:
    cluster = GangCluster({"alone": Wanted(4)}, capacity=2)
    cluster.live_for(LONG_S)
    assert cluster.deleted == []
    assert cluster.condition("alone")["status"] == "True"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({"schedulerName": "volcano"}, {"schedulerName": "volcano"}, id="another scheduler"),
        pytest.param({"nodeSelector": {"pool": "a"}}, {"nodeSelector": {"pool": "b"}}, id="other nodes"),
    ],
)
def test_jobs_that_do_not_compete_are_left_alone(first: dict[str, object], second: dict[str, object]) -> None:
    jobs = {"a": Wanted(4, template=first), "b": Wanted(4, template=second)}
    cluster = GangCluster(jobs, capacity=4, choose=in_turn)
    cluster.live_for(LONG_S)
    assert cluster.deleted == []


def test_a_suspended_job_holds_nobody_off_and_yields_nothing() -> None:
    jobs = {"asleep": Wanted(4, spec={"suspend": True}), "awake": Wanted(4)}
    cluster = GangCluster(jobs, capacity=4, choose=in_turn)
    cluster.live_for(100.0)
    assert cluster.running == {"awake"}
    assert cluster.condition("asleep")["status"] == "True"


JOBS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2), st.integers(0, 90)), min_size=1, max_size=4)


@settings(max_examples=20, deadline=None)
@given(JOBS, st.integers(1, 8), st.integers(0, 2**32))
def test_no_job_half_fits_for_ever_and_none_waits_that_would_fit(
    wanted: list[tuple[int, int, int]], capacity: int, seed: int
) -> None:
    jobs = {
        f"j{number}": Wanted(size, priority, created_at=float(created))
        for number, (size, priority, created) in enumerate(wanted)
    }
    cluster = GangCluster(jobs, capacity, choose=random.Random(seed).choice)
    trained: set[str] = set()
    for _ in range(2 * len(jobs) + 2):
        cluster.live_for(TURN_S, step_s=15.0)
        assert trained <= cluster.running, "a job that trains was touched"
        trained = cluster.running
    room = capacity - sum(jobs[name].size for name in cluster.running)
    waiting = sorted(set(jobs) - cluster.running)
    assert all(jobs[name].size > room for name in waiting), "a job waits that would fit"
    half = [name for name in waiting if cluster.placed(name)]
    assert len(half) <= 1, "two jobs hold nodes and neither runs"
