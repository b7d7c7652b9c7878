"""A job from its creation to its end, on a real API server."""

from typing import Any

from fake_kubelet import FakeKubelet
from fake_watchdog_for_operator import FakeOperatorWatchdog
from operator_rig import Cluster, OperatorProcess, add_nodes, condition, eventually, job_manifest, phase

from holdfast.api.cordon import CORDON_TAINT, CORDONED_BY
from holdfast.api.intervention import InterventionState
from holdfast.api.plan import NodeOrder
from holdfast.api.policy import Policy
from holdfast.api.status import JobPhase
from holdfast.api.trainingjob import policy_of, read_trainingjob


async def test_an_applied_job_gets_its_pods_and_runs(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    await add_nodes(kubelet, 3)
    operator.start("--audience", "research", "--lease-name", "who-acts")
    await cluster.apply(nodes={"min": 1, "max": 2, "spares": 1}, placement={"pack": ["example.org/rack"]})
    pods = await cluster.until_pods("gpt-0", "gpt-1", "gpt-2")
    for pod in pods.values():
        together = pod["spec"]["affinity"]["podAffinity"]
        assert "example.org/rack" in [
            each["podAffinityTerm"]["topologyKey"]
            for each in together["preferredDuringSchedulingIgnoredDuringExecution"]
        ]
        tokens = [
            source["serviceAccountToken"]["audience"]
            for volume in pod["spec"]["volumes"]
            for source in volume.get("projected", {}).get("sources", [])
            if "serviceAccountToken" in source
        ]
        assert tokens == ["research"]
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{cluster.namespace}/leases/who-acts"
    held = await cluster.get(lease)
    assert held is not None
    assert held["spec"]["holderIdentity"] == "one"
    await kubelet.wait_running(3)
    job = await cluster.until("Running", lambda job: phase(job) == "Running")
    assert job is not None
    assert job["metadata"]["finalizers"] == ["holdfast.dev/wind-up"]
    assert job["status"]["podsCreated"] == 3
    policy = watchdog.job(cluster.id()).policy
    assert policy is not None
    assert (policy.nodes_max, policy.spares) == (2, 1)
    assert sorted(cluster.pods_created.values()) == ["gpt-0", "gpt-1", "gpt-2"]
    own = ("reconcile_total", "reconcile_seconds_count", "reconcile_seconds_created", "workqueue_depth", "leader")
    asked = ("api_requests_total", "actions_total", "watchdog_connected")
    exported = await operator.exported()
    assert {f"holdfast_operator_{name}" for name in (*own, *asked)} - exported == set()
    assert "holdfast_job_condition" in exported


async def test_a_job_that_succeeded_stays_for_its_time_and_is_then_deleted(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    await add_nodes(kubelet, 2)
    operator.start()
    await cluster.apply(ttlAfterFinished="3s")
    await kubelet.wait_running(2)
    await watchdog.script(cluster.id(), phase=JobPhase.SUCCEEDED)
    for name in ("gpt-0", "gpt-1"):
        await kubelet.end_pod(name, 0)
    job = await cluster.until("Succeeded", lambda job: condition(job, "Succeeded") == "True")
    assert phase(job) == "Succeeded"
    await cluster.until("gone", lambda job: job is None)
    assert watchdog.forgotten == [cluster.id()]
    assert len(cluster.pods_created) == 2


async def test_the_scale_subresource_grows_and_shrinks_a_job(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    await add_nodes(kubelet, 4)
    operator.start()
    await cluster.apply()
    await cluster.until_pods("gpt-0", "gpt-1")
    await cluster.patch("gpt", {"spec": {"replicas": 4}}, "scale")
    await cluster.until_pods("gpt-0", "gpt-1", "gpt-2", "gpt-3")
    await watchdog.until_seen_running(cluster.id(), "gpt-0", "gpt-1", "gpt-2", "gpt-3")
    await cluster.patch("gpt", {"spec": {"replicas": 3}}, "scale")
    await watchdog.until("the smaller job", lambda: _nodes_max(watchdog, cluster) == 3)
    # A running pod goes only when the plan releases it.
    await watchdog.script(cluster.id(), release=("gpt-1",))
    await cluster.until_pods("gpt-0", "gpt-2", "gpt-3")
    assert len(cluster.pods_created) == 4
    await watchdog.script(cluster.id(), phase=JobPhase.STALLED)
    await cluster.until("stalled", lambda job: phase(job) == "Stalled")
    await cluster.until("three pods", lambda job: job is not None and job["status"]["members"]["pods"] == 3)
    scale = await cluster.api.call("GET", cluster.path("gpt", "scale"))
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (3, 3)


async def test_a_suspended_job_holds_no_pod_and_resumes_with_new_names(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await add_nodes(kubelet, 2)
    operator.start()
    await cluster.apply()
    await kubelet.wait_running(2)
    await cluster.patch("gpt", {"spec": {"suspend": True}})
    await cluster.until_pods()
    await cluster.until("Suspended", lambda job: condition(job, "Suspended") == "True")
    await cluster.patch("gpt", {"spec": {"suspend": False}})
    await cluster.until_pods("gpt-2", "gpt-3")
    await cluster.until("resumed", lambda job: condition(job, "Suspended") == "False")
    assert len(cluster.pods_created) == 4


async def test_a_deleted_job_takes_everything_with_it_and_is_forgotten(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    await add_nodes(kubelet, 2)
    operator.start()
    await cluster.apply()
    await kubelet.wait_running(2)
    await cluster.delete()
    await cluster.until("gone", lambda job: job is None)
    assert watchdog.forgotten == [cluster.id()]
    assert await cluster.listed("pods") == []
    assert await cluster.listed("services") == []


async def test_a_job_of_the_same_name_is_another_job(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    await add_nodes(kubelet, 2)
    operator.start()
    await cluster.apply()
    await kubelet.wait_running(2)
    await cluster.delete()
    await cluster.until("gone", lambda job: job is None)
    await cluster.apply(nodes={"min": 1, "max": 1})
    await cluster.until_pods("gpt-0")
    assert sorted(cluster.pods_created.values()) == ["gpt-0", "gpt-0", "gpt-1"]


async def test_a_template_the_api_server_refuses_makes_no_pod_until_it_is_right(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await add_nodes(kubelet, 2)
    operator.start()
    containers = [{"name": "trainer", "image": "train:test", "ports": [{"containerPort": 99999}]}]
    await cluster.apply(template={"spec": {"serviceAccountName": "default", "containers": containers}})
    job = await cluster.until("refused", lambda job: condition(job, "InvalidSpec") == "True")
    assert job is not None
    assert "containerPort" in str(job["status"]["conditions"])
    # One that it does not refuse, but leaves out: a sound job without its volumes would be worse than none.
    containers[0] |= {"ports": [], "volumeMount": [{"name": "data", "mountPath": "/data"}]}
    await cluster.patch("gpt", {"spec": {"template": {"spec": {"containers": containers}}}})
    await cluster.until(
        "refused anew", lambda job: "containers[0].volumeMount;" in str(job["status"]["conditions"])
    )
    assert cluster.pods_created == {}
    del containers[0]["volumeMount"]
    await cluster.patch("gpt", {"spec": {"template": {"spec": {"containers": containers}}}})
    await cluster.until_pods("gpt-0", "gpt-1")
    await cluster.until("accepted", lambda job: condition(job, "InvalidSpec") == "False")


async def test_a_changed_image_is_told_mends_a_pod_that_is_stuck_and_is_rolled_when_asked(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    await add_nodes(kubelet, 3)
    kubelet.refuse_pod("gpt-1")
    operator.start()
    await cluster.apply()
    await cluster.until("stuck", lambda job: "ImagePullBackOff" in _message(job, "Progressing"))
    trainer = {"name": "trainer", "image": "train:next"}
    template = {"spec": {"serviceAccountName": "default", "containers": [trainer]}}
    await cluster.patch("gpt", {"spec": {"template": template}})
    await cluster.until_pods("gpt-0", "gpt-2")
    says = "gpt-0 run an earlier template (image train:test); new pods get image train:next"
    await cluster.until("told", lambda job: _message(job, "UpToDate").startswith(says))
    asked = {"job": "gpt", "action": "Restart", "reason": "roll"}
    manifest = {"apiVersion": "holdfast.dev/v1alpha1", "kind": "Intervention", "metadata": {"name": "one"}}
    await cluster.api.call("POST", cluster.path(plural="interventions"), {**manifest, "spec": asked})
    pods = await cluster.until_pods("gpt-2", "gpt-3")
    assert {each["spec"]["containers"][0]["image"] for each in pods.values()} == {"train:next"}
    await cluster.until("as written", lambda job: condition(job, "UpToDate") == "True")


async def test_pods_stay_while_the_watchdog_is_away(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    await add_nodes(kubelet, 3)
    operator.start()
    await cluster.apply()
    await kubelet.wait_running(2)
    await watchdog.close()
    await eventually("the lost line noticed", lambda: _lines(operator, 0))
    await kubelet.end_pod("gpt-0", 1)
    await watchdog.open()
    await cluster.until_pods("gpt-1", "gpt-2")
    assert len(cluster.pods_created) == 3


async def test_an_operator_that_observes_says_what_it_would_do_and_does_nothing(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    known = watchdog.job(cluster.id())
    known.policy = _policy(cluster)
    operator.start("--mode", "observe")
    await cluster.apply()
    would = "nothing is changed; would do: Apply x2; CreatePod x2; Submit x1"
    job = await cluster.until("observing", lambda job: _message(job, "Observing") == would)
    await eventually("a line to the watchdog", lambda: _lines(operator, 1))
    assert job is not None
    assert "finalizers" not in job["metadata"]
    assert cluster.pods_created == {}
    await cluster.delete()
    await eventually("the line given up", lambda: _lines(operator, 0))
    assert (watchdog.forgotten, known.submissions, known.nodes, known.pods) == ([], 0, {}, {})


async def test_a_node_that_a_failed_job_took_out_of_service_is_returned_and_stays_out_when_it_is_deleted(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    names = await add_nodes(kubelet, 2)
    operator.start()
    await cluster.apply()
    await kubelet.wait_running(2)
    # What takes the nodes out of service is what the job fails of.
    orders = tuple(NodeOrder(name, "XID 79", "inc-1") for name in names)
    await watchdog.script(cluster.id(), phase=JobPhase.FAILED, avoid=orders, cordon=orders)
    await eventually("both out of service", lambda: _out_of_service(cluster, *names))
    await watchdog.script(cluster.id(), avoid=orders[1:], cordon=orders[1:], returned=names[:1])
    await eventually("one returned", lambda: _out_of_service(cluster, names[1]))
    assert len(cluster.pods_created) == 2
    await cluster.delete()
    await cluster.until("gone", lambda job: job is None)
    assert await _out_of_service(cluster, names[1]), "it is faulty, whoever ran there"
    watchdog.answer_intervention = InterventionState.REFUSED
    await cluster.apply(name="next")
    asked = {"job": "next", "action": "Return", "node": names[1], "reason": "repaired"}
    manifest = {"apiVersion": "holdfast.dev/v1alpha1", "kind": "Intervention", "metadata": {"name": "one"}}
    await cluster.api.call("POST", cluster.path(plural="interventions"), {**manifest, "spec": asked})
    await eventually("the other returned", lambda: _out_of_service(cluster))


async def _out_of_service(cluster: Cluster, *names: str) -> bool:
    """Whether those of this test's nodes are, by taint and annotation, and no others."""
    nodes = (await cluster.api.call("GET", "/api/v1/nodes"))["items"]
    ours = [each for each in nodes if each["metadata"]["name"].startswith(cluster.namespace)]
    tainted = {each["metadata"]["name"] for each in ours if _is_tainted(each)}
    written = {each["metadata"]["name"] for each in ours if CORDONED_BY in each["metadata"].get("annotations", {})}
    return tainted == written == set(names)


def _is_tainted(node: dict[str, Any]) -> bool:
    return any(taint["key"] == CORDON_TAINT for taint in node["spec"].get("taints", []))


async def _lines(operator: OperatorProcess, count: int) -> bool:
    return await operator.metric("holdfast_operator_watchdog_connected") == count


def _message(job: dict[str, Any] | None, kind: str) -> str:
    """What that condition says, empty when there is none."""
    conditions = ((job or {}).get("status") or {}).get("conditions") or []
    return next((str(each["message"]) for each in conditions if each["type"] == kind), "")


def _policy(cluster: Cluster) -> Policy:
    """Of a job that somebody else told the watchdog of."""
    return policy_of(read_trainingjob(job_manifest(cluster.namespace, "gpt")))


def _nodes_max(watchdog: FakeOperatorWatchdog, cluster: Cluster) -> int:
    policy = watchdog.job(cluster.id()).policy
    return policy.nodes_max if policy is not None else 0
