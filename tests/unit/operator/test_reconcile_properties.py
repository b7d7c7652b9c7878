from collections.abc import Callable

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_builders import OPTIONS, node
from toy_cluster import ToyCluster

from holdfast.api.plan import NodeState
from holdfast.operator.decide.action import Apply, Cordon, CreatePod, Delete, DeletePod, Submit, Tell, Uncordon
from holdfast.operator.decide.context import context_of
from holdfast.operator.decide.reconcile import reconcile

FOREIGN = "n7"  # another job took it out of service; nobody here may touch it

Step = Callable[[ToyCluster], object]


def some_node(number: int) -> str:
    return f"n{number % 7}"


def lose_node(cluster: ToyCluster, number: int) -> None:
    cluster.nodes.pop(some_node(number), None)


def silence_node(cluster: ToyCluster, number: int) -> None:
    if some_node(number) in cluster.nodes:
        cluster.nodes[some_node(number)] = node(some_node(number), ready="Unknown")


def mend_node(cluster: ToyCluster, number: int) -> None:
    cluster.nodes[some_node(number)] = node(some_node(number))


def end_a_pod(cluster: ToyCluster, number: int) -> None:
    if cluster.pods:
        cluster.end_pod(sorted(cluster.pods)[number % len(cluster.pods)])


def delete_a_pod(cluster: ToyCluster, number: int) -> None:
    if cluster.pods:
        name = sorted(cluster.pods)[number % len(cluster.pods)]
        cluster._delete(name, cluster.pods[name].metadata.uid, None)


def avoid_a_node(cluster: ToyCluster, number: int) -> None:
    cluster.avoid(some_node(number))


def return_a_node(cluster: ToyCluster, number: int) -> None:
    cluster.return_node(FOREIGN if number % 4 == 0 else some_node(number))


def scale(cluster: ToyCluster, number: int) -> None:
    cluster.members = 1 + number % 4
    cluster.change_spec()


def suspend(cluster: ToyCluster, number: int) -> None:
    cluster.suspended = bool(number % 2)
    cluster.change_spec()


def go_away(cluster: ToyCluster, number: int) -> None:
    cluster.heard_age_s = float(number)


def pass_time(cluster: ToyCluster, number: int) -> None:
    cluster.live_for(float(number))


def decide(cluster: ToyCluster, _: int) -> None:
    if cluster.taken is not None and cluster.heard_age_s == 0:
        cluster.think()


FAULTS = (
    *(lose_node, silence_node, mend_node, end_a_pod, delete_a_pod, avoid_a_node, return_a_node),
    *(scale, suspend, go_away, pass_time, pass_time, decide, decide),
)
STORY = st.lists(st.tuples(st.sampled_from(FAULTS), st.integers(0, 60)), max_size=25)


def step(cluster: ToyCluster) -> None:
    """One reconcile, held against every promise."""
    seen = cluster.observed()
    case = context_of(seen, OPTIONS, cluster.now)
    outcome = reconcile(seen, OPTIONS, cluster.now)
    assert outcome == reconcile(seen, OPTIONS, cluster.now), "the same look comes to the same"
    wanted = (seen.plan.members + seen.plan.spares) if seen.plan else None
    running = {pod.metadata.name: pod for pod in seen.pods if pod.status.phase == "Running"}
    for action in outcome.actions:
        if isinstance(action, DeletePod) and action.name in running and wanted != 0:
            there = case.nodes[running[action.name].spec.node_name].state
            released = seen.plan is not None and action.name in seen.plan.release
            assert released or there is NodeState.GONE, f"{action} of a running pod that was not released"
            assert action.grace_s is None or released, f"{action} by force of a pod that was not fenced"
        if isinstance(action, Cordon | Uncordon):
            assert action.node != FOREIGN, f"{action} touches a node that another job took out of service"
    cluster.reconcile()  # creates check that no name is used twice


def mend(cluster: ToyCluster) -> None:
    """All faults are over."""
    for number in range(7):
        mend_node(cluster, number)
    cluster.heard_age_s = 0.0
    if cluster.plan is not None:
        cluster.plan = msgspec.structs.replace(cluster.plan, avoid=(), cordon=(), returned=())


def told_of(story: list[tuple[Callable[[ToyCluster, int], None], int]]) -> ToyCluster:
    cluster = ToyCluster()
    cluster.nodes[FOREIGN] = node(FOREIGN, cordoned_by="research/other")
    for _ in range(3):
        step(cluster)
    cluster.live_for(1.0)
    cluster.live_for(1.0)
    for fault, number in story:
        fault(cluster, number)
        step(cluster)
    return cluster


@settings(max_examples=80)
@given(STORY)
def test_a_mended_cluster_comes_to_rest_with_what_the_plan_wants(
    story: list[tuple[Callable[[ToyCluster, int], None], int]],
) -> None:
    cluster = told_of(story)
    mend(cluster)
    for _ in range(12):
        decide(cluster, 0)
        step(cluster)
        cluster.live_for(400.0)
    decide(cluster, 0)
    outcome = cluster.reconcile()
    changing = (CreatePod, DeletePod, Apply, Delete, Cordon, Uncordon, Submit)
    assert [action for action in outcome.actions if isinstance(action, changing)] == []
    assert outcome.status is None
    assert outcome.events == ()
    wanted = 0 if cluster.suspended else cluster.members + cluster.spares
    there = [pod for pod in cluster.pods.values() if pod.status.phase == "Running"]
    assert len(there) == wanted
    assert len(cluster.pods) - len(there) <= 3, "only the newest logs are kept"
    assert bool(cluster.budgets) == (wanted > 0)


@settings(max_examples=80)
@given(STORY, st.booleans())
def test_a_deleted_job_is_let_go_whatever_happened_before(
    story: list[tuple[Callable[[ToyCluster, int], None], int]], away: bool
) -> None:
    cluster = told_of(story)
    cluster.heard_age_s = 1.0 if away else 0.0
    cluster.delete_job()
    for _ in range(10):
        if cluster.job is None:
            break
        cluster.reconcile()
        cluster.live_for(100.0)
        cluster.heard_age_s += 100.0 if away else 0.0
    assert cluster.job is None, "the finalizer holds the job for ever"
    assert cluster.forgotten is not away
    assert (cluster.services, cluster.budgets) == ({}, {})


def test_only_the_watchdog_is_told_when_nothing_changes() -> None:
    cluster = told_of([])
    cluster.reconcile()
    outcome = cluster.reconcile()
    assert {type(action) for action in outcome.actions} == {Tell}
    assert outcome.status is None
