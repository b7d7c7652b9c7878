from typing import Any

import pytest
from operator_builders import (
    NOW,
    OPTIONS,
    actions_of,
    document,
    ended_pod,
    node,
    nodes,
    observed,
    order,
    pending_pod,
    plan,
    pod,
    report,
    spec_of,
)

from holdfast.api.jobstatus import Condition
from holdfast.api.plan import NodeObserved, NodeState, PodEnd, PodObserved, PodState
from holdfast.api.status import JobPhase
from holdfast.operator.decide.action import Tell
from holdfast.operator.decide.nodes import state_of
from holdfast.operator.decide.observed import Observed, Options
from holdfast.operator.decide.pods import FIRST_WAIT_S, crash_loop, ended_by, ran_from_to
from holdfast.operator.decide.pods import state_of as pod_state_of
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.decide.template import Toleration
from holdfast.operator.kube.objects import (
    ContainerState,
    ContainerStatus,
    Node,
    Pod,
    PodStatus,
    Taint,
    Terminated,
    Waiting,
    text_of,
)

MAINTENANCE = Options("w:1", "image", maintenance_taints=("example.com/maintenance",))
DRAINING = NodeState.DRAINING


@pytest.mark.parametrize(
    ("given", "state", "says"),
    [
        (node("n1"), NodeState.READY, ""),
        (node("n1", ready="False"), NodeState.NOT_READY, "kubelet says False"),
        (node("n1", ready="Unknown"), NodeState.NOT_READY, "kubelet says Unknown"),
        (node("n1", ready=None), NodeState.UNKNOWN, "no Ready condition"),
        (node("n1", unschedulable=True), DRAINING, "somebody cordoned it"),
        (node("n1", ready="False", unschedulable=True), NodeState.NOT_READY, "kubelet says False"),
        (node("n1", cordoned_by="research/gpt"), NodeState.READY, ""),
        (node("n1", taints=[Taint("gpu", "NoSchedule")]), NodeState.READY, ""),
        (node("n1", taints=[Taint("gpu", "NoExecute")]), DRAINING, "taint gpu:NoExecute"),
        (node("n1", taints=[Taint("example.com/maintenance", "NoSchedule")]), DRAINING, "maintenance:NoSchedule"),
        (node("n1", taints=[Taint("example.com/maintenance", "PreferNoSchedule")]), NodeState.READY, ""),
        (node("n1", taints=[Taint("node.kubernetes.io/unreachable", "NoExecute")]), NodeState.READY, ""),
    ],
)
def test_a_nodes_state_is_told_from_its_condition_and_taints(given: Node, state: NodeState, says: str) -> None:
    found, why = state_of(given, MAINTENANCE, ())
    assert found is state
    assert says in why
    assert bool(why) == bool(says)


@pytest.mark.parametrize(
    ("toleration", "stays"),
    [
        (Toleration(operator="Exists"), True),
        (Toleration("spot", "Exists"), True),
        (Toleration("spot", "Equal", "yes"), True),
        (Toleration("spot", "Equal", "yes", "NoExecute"), True),
        (Toleration("spot", "Equal", "no"), False),
        (Toleration("other", "Exists"), False),
        (Toleration("spot", "Exists", effect="NoSchedule"), False),
        (Toleration("spot", "Exists", toleration_seconds=300), False),
        (Toleration("spot", "Gt", "1"), False),
    ],
)
def test_a_taint_that_the_pods_tolerate_for_good_drains_nothing(toleration: Toleration, stays: bool) -> None:
    tainted = node("n1", taints=[Taint("spot", "NoExecute", "yes")])
    state, _ = state_of(tainted, MAINTENANCE, (toleration,))
    assert state is (NodeState.READY if stays else DRAINING)


def test_a_condition_without_words_is_told_by_its_status() -> None:
    bare = Node(node("n1").metadata, status=type(node("n1").status)((Condition("Ready", "False"),)))
    assert state_of(bare, MAINTENANCE, ()) == (NodeState.NOT_READY, "Ready is False")


def scheduled(says: str, reason: str = "Unschedulable") -> Condition:
    return Condition("PodScheduled", "False", reason, says)


def waiting_in_init(reason: str) -> Pod:
    status = ContainerStatus("fetch", state=ContainerState(waiting=Waiting(reason, "cannot pull")))
    made = pod(0, phase="Pending")
    return Pod(made.metadata, made.spec, PodStatus("Pending", init_container_statuses=(status,)))


@pytest.mark.parametrize(
    ("given", "state", "says"),
    [
        (pod(0), PodState.RUNNING, ""),
        (pending_pod(0), PodState.PENDING, ""),
        (pending_pod(0, "0/3 nodes"), PodState.PENDING, "Unschedulable: 0/3 nodes"),
        (pod(0, phase="Pending", conditions=[scheduled("", "")]), PodState.PENDING, "Unschedulable"),
        (pod(0, phase="Pending", conditions=[Condition("PodScheduled", "True")]), PodState.PENDING, ""),
        (pod(0, phase="Pending", waiting=Waiting("ContainerCreating")), PodState.PENDING, ""),
        (
            pod(0, phase="Pending", waiting=Waiting("ImagePullBackOff", "no such image")),
            PodState.PENDING,
            "container trainer: ImagePullBackOff: no such image",
        ),
        (waiting_in_init("ErrImagePull"), PodState.PENDING, "container fetch: ErrImagePull: cannot pull"),
        (pod(0, deleted=True), PodState.LEAVING, "the pod is being deleted"),
        (pod(0, deleted=True, reason="Preempting"), PodState.LEAVING, "Preempting"),
        (
            pod(
                0,
                deleted=True,
                conditions=[Condition("DisruptionTarget", "True", "EvictionByEvictionAPI", "drain")],
            ),
            PodState.LEAVING,
            "EvictionByEvictionAPI: drain",
        ),
        (
            pod(0, deleted=True, conditions=[Condition("DisruptionTarget", "False")]),
            PodState.LEAVING,
            "the pod is being deleted",
        ),
        (
            pod(0, phase="Failed", ended=Terminated(137, "OOMKilled")),
            PodState.GONE,
            "OOMKilled (exit code 137)",
        ),
        (ended_pod(0), PodState.GONE, "exit code 1: no module named x"),
        (ended_pod(0, exit_code=0), PodState.GONE, "exit code 0: no module named x"),
        (
            pod(0, phase="Failed", reason="Evicted", message="low on disk"),
            PodState.GONE,
            "Evicted: low on disk",
        ),
        (pod(0, phase="Failed", message="lost"), PodState.GONE, "Failed: lost"),
    ],
)
def test_a_pods_state_is_told_in_words_for_people(given: Pod, state: PodState, says: str) -> None:
    assert pod_state_of(given) == (state, says)


OOM = Terminated(137, "OOMKilled")


def disrupted(reason: str, status: str = "True") -> Condition:
    return Condition("DisruptionTarget", status, reason)


@pytest.mark.parametrize(
    ("given", "end"),
    [
        (pod(0), None),
        (pending_pod(0, "0/3 nodes"), None),
        (ended_pod(0), None),
        (pod(0, phase="Failed", ended=OOM, memory="32Gi"), PodEnd.OWN_LIMIT),
        # The kernel chose it because the node's memory was used up.
        (pod(0, phase="Failed", ended=OOM), None),
        (pod(0, phase="Failed", ended=Terminated(137, "Error"), memory="32Gi"), None),
        # It began a second worker: a container that is told of as killed and goes on.
        (pod(0, ended=OOM, memory="32Gi"), None),
        (pod(0, deleted=True), PodEnd.DELETED),
        (pod(0, deleted=True, phase="Failed", ended=Terminated(137, "Error")), PodEnd.DELETED),
        (pod(0, deleted=True, conditions=[disrupted("PreemptionByScheduler")]), PodEnd.DISPLACED),
        (pod(0, deleted=True, conditions=[disrupted("EvictionByEvictionAPI")]), PodEnd.DISPLACED),
        (pod(0, deleted=True, conditions=[disrupted("", "False")]), PodEnd.DELETED),
        # The node is why.
        (pod(0, deleted=True, conditions=[disrupted("DeletionByTaintManager")]), None),
        (pod(0, deleted=True, conditions=[disrupted("DeletionByPodGC")]), None),
        (pod(0, phase="Failed", reason="Evicted", conditions=[disrupted("TerminationByKubelet")]), None),
    ],
)
def test_who_ends_a_pod_is_told_where_its_node_has_no_part_in_it(given: Pod, end: PodEnd | None) -> None:
    assert ended_by(given) is end
    assert told(observed(pods=(given,)))["gpt-0"].end is end  # type: ignore[union-attr]


def failed_in_init(ended: Terminated) -> Pod:
    """Its trainer never began."""
    fetched = ContainerStatus("fetch", state=ContainerState(terminated=Terminated(0, "Completed")))
    failed = ContainerStatus("launcher", state=ContainerState(terminated=ended))
    made = pod(0, phase="Failed", waiting=Waiting("PodInitializing"), created_at=NOW - 3600)
    trainers = made.status.container_statuses
    status = PodStatus("Failed", container_statuses=trainers, init_container_statuses=(fetched, failed))
    return Pod(made.metadata, made.spec, status)


def test_a_pod_whose_init_container_failed_ended_as_that_did() -> None:
    given = failed_in_init(Terminated(3, "Error", "disk full", text_of(NOW - 9), text_of(NOW - 2)))
    assert pod_state_of(given) == (PodState.GONE, "exit code 3: disk full")
    assert ran_from_to(given) == (NOW - 9, NOW - 2)


def test_a_pod_that_fails_in_its_init_container_again_and_again_is_a_crash_loop() -> None:
    given = failed_in_init(Terminated(3, "Error", "disk full", text_of(NOW - 9), text_of(NOW - 2)))
    newest = crash_loop((given,), NOW).newest
    assert newest is not None
    assert (newest.count, newest.due) == (1, NOW - 2 + FIRST_WAIT_S)
    assert newest.says() == "gpt-0 ended 7 s after its start: exit code 3: disk full"


def test_long_last_words_are_cut() -> None:
    _, says = pod_state_of(pod(0, phase="Failed", ended=Terminated(1, "Error", "x" * 9999)))
    assert len(says) == 500
    assert says.endswith("…")


def test_a_pod_that_never_ran_ran_from_and_to_its_creation() -> None:
    assert ran_from_to(pod(0, phase="Failed", created_at=NOW)) == (NOW, NOW)
    assert ran_from_to(ended_pod(0, ran_s=7, ended_at=NOW)) == (NOW - 7, NOW)


def told(seen: Observed) -> dict[str, NodeObserved | PodObserved]:
    tells = actions_of(reconcile(seen, OPTIONS, NOW), Tell)
    return {
        each.observed.node if isinstance(each.observed, NodeObserved) else each.observed.member: each.observed
        for each in tells
    }


def test_nodes_of_pods_and_of_the_plan_are_told_of_and_no_others() -> None:
    seen = observed(
        pods=(pod(0), pending_pod(1)),
        plan=plan(avoid=(order("n5"),), cordon=(order("n6"),), returned=("n7", "n99")),
    )
    told_nodes = {name: each.state for name, each in told(seen).items() if isinstance(each, NodeObserved)}
    ready = NodeState.READY
    assert told_nodes == {"n0": ready, "n5": ready, "n6": ready, "n7": ready, "n99": NodeState.GONE}


def test_an_operator_that_sees_no_node_at_all_says_that_it_does_not_know() -> None:
    seen = observed(nodes={})
    assert told(seen)["n0"] == NodeObserved("n0", NodeState.UNKNOWN, "no node can be seen")
    assert "DeletePod" not in str(reconcile(seen, OPTIONS, NOW).actions)


def test_a_node_is_told_of_with_the_closest_domain_that_the_job_packs_by_and_it_is_in() -> None:
    packed = spec_of(document(placement={"pack": ["example.com/nvlink", "example.com/rack"]}))
    labelled = {
        **nodes(),
        "n0": node("n0", labels={"example.com/rack": "r7", "example.com/nvlink": "d3"}),
        "n1": node("n1", labels={"example.com/rack": "r7"}),
    }
    pods = (pod(0), pod(1), pod(2))
    seen = told(observed(pods=pods, nodes=labelled, spec=packed))
    racks = {name: each.rack for name, each in seen.items() if isinstance(each, NodeObserved)}
    assert racks == {"n0": "d3", "n1": "r7", "n2": ""}
    unpacked = told(observed(pods=pods, nodes=labelled))
    assert unpacked["n0"] == NodeObserved("n0", NodeState.READY)


def test_tolerations_of_the_template_count() -> None:
    tolerant = spec_of(
        document(
            template={
                "spec": {
                    "containers": [{"name": "trainer"}],
                    "tolerations": [{"key": "spot", "operator": "Exists"}],
                }
            }
        )
    )
    tainted = {**nodes(), "n0": node("n0", taints=[Taint("spot", "NoExecute")])}
    assert told(observed(nodes=tainted))["n0"].state is NodeState.DRAINING
    assert told(observed(nodes=tainted, spec=tolerant))["n0"].state is NodeState.READY


@pytest.mark.parametrize("edited", [{"template": {}}, {"nodes": 4}], ids=["no template", "no spec"])
def test_a_spec_that_cannot_be_read_moves_nobody_off_a_node_its_pods_may_tolerate(edited: dict[str, Any]) -> None:
    tainted = {**nodes(), "n0": node("n0", taints=[Taint("spot", "NoExecute")])}
    assert told(observed(nodes=tainted, spec=spec_of(document(**edited))))["n0"].state is NodeState.READY
    going = {**nodes(), "n0": node("n0", taints=[Taint("ToBeDeletedByClusterAutoscaler", "NoSchedule")])}
    assert told(observed(nodes=going, spec=spec_of(document(**edited))))["n0"].state is NodeState.DRAINING


def test_pods_that_somebody_else_deletes_leave_and_those_the_plan_lets_go_are_there_until_they_are_gone() -> None:
    pods = (pod(0, deleted=True), pod(1, deleted=True), pod(2), ended_pod(3))
    seen = observed(pods=pods, plan=plan(release=("gpt-1",)))
    states = {name: each.state for name, each in told(seen).items() if isinstance(each, PodObserved)}
    running = PodState.RUNNING
    expected = {"gpt-0": PodState.LEAVING, "gpt-1": running, "gpt-2": running, "gpt-3": PodState.GONE}
    assert states == expected
    for wanted_away in (observed(pods=pods, plan=plan(0)), observed(pods=pods, report=report(JobPhase.SUCCEEDED))):
        assert told(wanted_away)["gpt-0"] == PodObserved("gpt-0", "n0", running)


@pytest.mark.parametrize(
    ("says", "end"),
    [
        ('Usage of EmptyDir volume "scratch" exceeds the limit "1Gi". ', PodEnd.OWN_LIMIT),
        ('Container trainer exceeded its local ephemeral storage limit "2Gi". ', PodEnd.OWN_LIMIT),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. ", PodEnd.OWN_LIMIT),
        ("The node was low on resource: ephemeral-storage. Container trainer was using 9Gi. ", None),
    ],
)
def test_a_pod_evicted_for_its_own_limit_of_storage_blames_no_node(says: str, end: PodEnd | None) -> None:
    target = Condition("DisruptionTarget", "True", "TerminationByKubelet", says)
    evicted = pod(0, phase="Failed", reason="Evicted", message=says, conditions=(target,))
    assert ended_by(evicted) is end
