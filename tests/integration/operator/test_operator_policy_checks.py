"""A changed policy is tried before it takes effect: by one pod, on a real API server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_kubelet import FakeKubelet
from fake_watchdog_for_operator import FakeOperatorWatchdog
from operator_rig import Cluster, OperatorProcess, add_nodes, eventually
from test_operator_rights import signed_in

from holdfast.api.judgement import Brief, Judgement
from holdfast.api.policy import Policy
from holdfast.api.status import JobPhase

IMAGE = ("--policy-check-image", "operator:test")
RBAC = "/apis/rbac.authorization.k8s.io/v1"
LATER = {"heartbeat": {"lost": "9s"}}
LATEST = {"heartbeat": {"lost": "12s"}}
EARLIER = {"heartbeat": {"lost": "5s"}}
WORSE = Brief(Judgement.WORSE, "", 3.2, 12, 20, 14.0, 120.0, 300.0, "USD", 2.0, 0.0, "lost_gpu_hours", 120.0, 4.0)
BETTER = msgspec.structs.replace(WORSE, says=Judgement.BETTER, minutes=-14.0, gpu_hours=-120.0)


def said(job: dict[str, Any] | None) -> tuple[str, str, str]:
    """Status, reason and message of the condition."""
    conditions = ((job or {}).get("status") or {}).get("conditions") or []
    found = next((each for each in conditions if each["type"] == "PolicyChecked"), {})
    return str(found.get("status")), str(found.get("reason")), str(found.get("message"))


class Checks:
    """The pods that try policies of the job, and what the watchdog has."""

    def __init__(self, cluster: Cluster, kubelet: FakeKubelet, watchdog: FakeOperatorWatchdog) -> None:
        self._cluster = cluster
        self._kubelet = kubelet
        self._watchdog = watchdog

    async def trains(self, mode: str) -> None:
        """A job that trains, whose changes are checked."""
        await add_nodes(self._kubelet, 2)
        await self._cluster.apply(policyCheck=mode, faultPolicy=EARLIER, nodes={"min": 1, "max": 1})
        await self._kubelet.wait_running(1)
        await self._cluster.until("in force", lambda job: said(job)[1] == "InForce")

    def names(self) -> list[str]:
        return sorted(name for name in self._cluster.pods_created.values() if name.endswith("-check"))

    async def running(self) -> str:
        """The name of the only one there is, once it runs."""
        found: list[str] = []

        async def so() -> bool:
            there = self._kubelet.pods.values()
            found[:] = [each.name for each in there if each.name.endswith("-check") and each.phase == "Running"]
            return len(found) == 1

        await eventually("one checking pod", so, lambda: found)
        return found[0]

    async def end(self, found: Brief | str) -> str:
        """It ends with these as its last words."""
        name = await self.running()
        words = found if isinstance(found, str) else msgspec.json.encode(found).decode()
        code = int(isinstance(found, str) or found.says is Judgement.WORSE)
        await self._kubelet.end_pod(name, code, message=words)
        return name

    async def gone(self) -> None:
        async def so() -> bool:
            return not any(
                each["metadata"]["name"].endswith("-check") for each in await self._cluster.listed("pods")
            )

        await eventually("no checking pod", so)
        for plural in ("roles", "rolebindings"):
            found = await self._cluster.api.call("GET", f"{RBAC}/namespaces/{self._cluster.namespace}/{plural}")
            assert [each for each in found["items"] if each["metadata"]["name"].endswith("-check")] == []

    async def events(self, *reasons: str) -> dict[str, dict[str, Any]]:
        """The job's events by reason, once these are among them."""
        found: dict[str, dict[str, Any]] = {}

        async def so() -> bool:
            found.update({each["reason"]: each for each in await self._cluster.listed("events")})
            return found.keys() >= set(reasons)

        await eventually(f"events of {reasons}", so, lambda: sorted(found))
        return found

    @property
    def policy(self) -> Policy:
        policy = self._watchdog.job(self._cluster.id()).policy
        assert policy is not None
        return policy

    async def told(self, reason: str, *, lost_s: float, held: bool, status: str = "") -> str:
        """The condition's message, once it says that and the watchdog has that policy."""
        job = await self._cluster.until(reason, lambda job: said(job)[1] == reason and status in said(job)[0])
        await self._watchdog.until(
            f"{lost_s} in force", lambda: (self.policy.lost_after_s, self.policy.held) == (lost_s, held)
        )
        return said(job)[2]


@pytest.fixture
def checks(cluster: Cluster, kubelet: FakeKubelet, watchdog: FakeOperatorWatchdog) -> Checks:
    return Checks(cluster, kubelet, watchdog)


@pytest.fixture
def limited(cluster: Cluster, watchdog: FakeOperatorWatchdog, tmp_path: Path) -> Iterator[OperatorProcess]:
    """With the rights of the chart."""
    with signed_in(cluster, watchdog.endpoint, tmp_path, {}) as operator:
        yield operator


async def test_with_warn_a_worse_policy_takes_effect_and_is_told_of(
    cluster: Cluster, limited: OperatorProcess, checks: Checks
) -> None:
    """With no other rights than the chart gives."""
    limited.start(*IMAGE)
    await checks.trains("warn")
    await cluster.apply(faultPolicy=LATER)
    await checks.told("Checking", lost_s=5.0, held=True, status="False")
    name = await checks.running()
    role = await cluster.get(f"{RBAC}/namespaces/{cluster.namespace}/roles/{name}")
    assert role is not None
    assert [each["resourceNames"] for each in role["rules"]] == [["gpt"]]
    await checks.end(WORSE)
    message = await checks.told("Worse", lost_s=9.0, held=False, status="True")
    assert "+120.0 GPU-hours, +300.0 USD lost, +2.0 evictions" in message
    await checks.gone()
    assert len(checks.names()) == 1
    events = await checks.events("PolicyChecked", "PolicyCheckStarted")
    assert events["PolicyChecked"]["type"] == "Warning"
    assert await limited.metric("holdfast_operator_api_requests_total", code="403") == 0


async def test_with_require_a_worse_policy_is_held_until_it_is_no_more_required(
    cluster: Cluster, operator: OperatorProcess, checks: Checks, watchdog: FakeOperatorWatchdog
) -> None:
    operator.start(*IMAGE)
    await checks.trains("require")
    await cluster.apply(faultPolicy=LATER, nodes={"min": 1, "max": 2})
    await checks.end(WORSE)
    message = await checks.told("Worse", lost_s=5.0, held=True, status="False")
    assert "held back" in message
    assert checks.policy.nodes_max == 2, "what is no policy takes effect at once"
    await checks.events("PolicyHeld")
    submissions = watchdog.job(cluster.id()).submissions
    await cluster.apply(policyCheck="warn")
    await checks.told("Worse", lost_s=9.0, held=False, status="True")
    await checks.gone()
    assert len(checks.names()) == 1, "what was found stands"
    assert watchdog.job(cluster.id()).submissions == submissions + 1


async def test_with_require_a_better_policy_takes_effect(
    cluster: Cluster, operator: OperatorProcess, checks: Checks
) -> None:
    operator.start(*IMAGE)
    await checks.trains("require")
    await cluster.apply(faultPolicy=LATER)
    await checks.end(BETTER)
    assert "-120.0 GPU-hours" in await checks.told("Better", lost_s=9.0, held=False, status="True")
    await checks.gone()


async def test_a_check_that_fails_holds_with_require_and_is_made_anew_when_its_pod_is_deleted(
    cluster: Cluster, operator: OperatorProcess, checks: Checks
) -> None:
    operator.start(*IMAGE)
    await checks.trains("require")
    await cluster.apply(faultPolicy=LATER)
    name = await checks.end("holdfast: the watchdog is of another version")
    message = await checks.told("CheckFailed", lost_s=5.0, held=True, status="False")
    assert "of another version" in message
    assert f"kubectl delete pod {name}" in message
    await cluster.api.call("DELETE", f"/api/v1/namespaces/{cluster.namespace}/pods/{name}")
    await checks.end(BETTER)
    await checks.told("Better", lost_s=9.0, held=False, status="True")


async def test_a_check_that_cannot_be_made_says_why_and_lets_pass_with_warn_alone(
    cluster: Cluster, operator: OperatorProcess, checks: Checks
) -> None:
    operator.start(*IMAGE)
    await checks.trains("require")
    # A pod with a deadline counts as terminating. There is no quota controller: what is hard is said here.
    hard: dict[str, Any] = {"hard": {"pods": "0"}}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
    path = f"/api/v1/namespaces/{cluster.namespace}/resourcequotas"
    await cluster.api.call("POST", path, {**quota, "spec": {**hard, "scopes": ["Terminating"]}})
    status = {"status": {**hard, "used": {"pods": "0"}}}
    await cluster.api.call("PATCH", f"{path}/none/status", status, content="application/merge-patch+json")
    await cluster.apply(faultPolicy=LATER)
    message = await checks.told("CheckFailed", lost_s=5.0, held=True, status="False")
    assert "no pod can be made that tries it" in message
    await cluster.apply(policyCheck="warn")
    await checks.told("CheckFailed", lost_s=9.0, held=False, status="Unknown")
    await checks.gone()


async def test_an_operator_that_dies_in_the_midst_loses_nothing_and_does_nothing_twice(
    cluster: Cluster, operator: OperatorProcess, checks: Checks
) -> None:
    operator.start(*IMAGE)
    await checks.trains("require")
    operator.start(*IMAGE, fault="after-check:1")
    await cluster.apply(faultPolicy=LATER)
    await checks.running()
    operator.start(*IMAGE)
    await checks.told("Checking", lost_s=5.0, held=True)
    operator.kill()
    await checks.end(BETTER)
    operator.start(*IMAGE)
    await checks.told("Better", lost_s=9.0, held=False, status="True")
    await checks.gone()
    assert len(checks.names()) == 1


async def test_a_change_that_is_taken_back_or_followed_by_another_ends_its_check(
    cluster: Cluster, operator: OperatorProcess, checks: Checks
) -> None:
    operator.start(*IMAGE)
    await checks.trains("require")
    await cluster.apply(faultPolicy=LATER)
    first = await checks.running()
    await cluster.apply(faultPolicy=LATEST)

    async def followed() -> bool:
        return len(checks.names()) > 1

    await eventually("another pod", followed, checks.names)
    second = await checks.running()
    assert second != first
    await checks.told("Checking", lost_s=5.0, held=True)
    await cluster.apply(faultPolicy=EARLIER)
    await checks.told("InForce", lost_s=5.0, held=False, status="True")
    await checks.gone()
    assert checks.names() == sorted((first, second))


@pytest.mark.parametrize("how", ["suspended", "deleted", "over"])
async def test_a_job_that_stops_training_leaves_no_checking_pod(
    cluster: Cluster, operator: OperatorProcess, checks: Checks, watchdog: FakeOperatorWatchdog, how: str
) -> None:
    operator.start(*IMAGE)
    await checks.trains("require")
    await cluster.apply(faultPolicy=LATER)
    await checks.running()
    match how:
        case "suspended":
            await cluster.apply(suspend=True)
        case "deleted":
            await cluster.delete()
        case _:
            await watchdog.script(cluster.id(), phase=JobPhase.SUCCEEDED)
    await checks.gone()
    if how == "suspended":
        await checks.told("Waiting", lost_s=5.0, held=True)
        await cluster.apply(suspend=False)
        await checks.end(BETTER)
        await checks.told("Better", lost_s=9.0, held=False, status="True")
