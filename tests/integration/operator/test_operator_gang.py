"""Two jobs that each hold half of what they need, on a real API server: one of them runs, then the other."""

from collections.abc import Mapping
from typing import Any

from fake_kubelet import MERGE, FakeKubelet, Pod
from fake_watchdog_for_operator import FakeOperatorWatchdog
from operator_rig import Cluster, OperatorProcess, condition
from patience import patient

from holdfast.api.status import JobPhase

BOTH = {"nodes": {"min": 2, "max": 2}}
ONE_POD = {"cpu": "8", "memory": "64Gi", "pods": "1"}
KEPT = {"key": "example.org/kept", "value": "for-second", "effect": "NoSchedule"}
# Nobody yields before it was short for half a minute.
YIELDED_WITHIN_S = patient(60.0)


def reason(job: dict[str, Any] | None) -> str:
    conditions = ((job or {}).get("status") or {}).get("conditions") or []
    return next((str(each["reason"]) for each in conditions if each["type"] == "Admitted"), "")


def places_of(job: str, pods: Mapping[str, Pod]) -> set[str]:
    return {each.node for each in pods.values() if each.name.startswith(f"{job}-") and each.node}


async def test_of_two_jobs_that_half_fit_one_runs_and_the_other_after_it(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    nodes = [f"{cluster.namespace}-{name}" for name in ("one", "other")]
    await kubelet.add_nodes(nodes[:1], capacity=ONE_POD)
    await kubelet.add_nodes(nodes[1:], capacity=ONE_POD, taints=[KEPT])
    operator.start()
    await cluster.apply("first", **BOTH)
    await kubelet.wait("the half of the first", lambda pods: places_of("first", pods) == {nodes[0]})
    trainer = {"name": "trainer", "image": "train:test"}
    tolerant = {"serviceAccountName": "default", "containers": [trainer], "tolerations": [{"operator": "Exists"}]}
    await cluster.apply("second", **BOTH, template={"spec": tolerant})
    await kubelet.wait("the half of the second", lambda pods: places_of("second", pods) == {nodes[1]})
    for name in ("first", "second"):
        await watchdog.script(cluster.id(name), phase=JobPhase.PENDING)
    await kubelet.api.call("PATCH", f"/api/v1/nodes/{nodes[1]}", {"spec": {"taints": []}}, content=MERGE)

    yielded = await cluster.until(
        "the younger one to yield", lambda job: condition(job, "Admitted") == "False", "second", YIELDED_WITHIN_S
    )
    assert reason(yielded) == "Yielded"
    await kubelet.wait("all of the first", lambda pods: places_of("first", pods) == set(nodes))
    await watchdog.script(cluster.id("first"), phase=JobPhase.RUNNING)
    first = await cluster.job("first")
    assert condition(first, "Admitted") == "True"

    await cluster.delete("first")
    await watchdog.script(cluster.id("first"), phase=JobPhase.SUSPENDED)  # it was saved and gave its nodes back
    await kubelet.wait("all of the second", lambda pods: places_of("second", pods) == set(nodes), 60.0)
    second = await cluster.until("its turn", lambda job: condition(job, "Admitted") == "True", "second")
    assert reason(second) == "Admitted"
