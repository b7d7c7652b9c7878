"""Teams with a namespace and a queue each, one quota for all, and the programs around them."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from apiserver import ApiServer
from operator_rig import Cluster, Nodes, OperatorProcess, condition, eventually, job_manifest, phase
from played_launchers import PlayedLaunchers
from test_operator_with_watchdog import started_watchdog

from holdfast.operator.crd import definitions
from holdfast.operator.kube.objects import QUEUE_LABEL, QUEUE_PRIORITY_LABEL
from kube.kueued import KueueController

API: Final = "/apis/kueue.x-k8s.io/v1beta2"
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
QUOTA: Final = 4  # nodes
WITHIN_S: Final = 60.0
LEARNER: Final = "research"
"""The namespace of the tutorial."""

Manifest = dict[str, Any]


@dataclass
class Team:
    """A namespace with its own queue, job and nodes."""

    cluster: Cluster
    kubelet: Nodes
    launchers: PlayedLaunchers

    @property
    def _path(self) -> str:
        return f"{API}/namespaces/{self.cluster.namespace}/workloads/trainingjob-gpt"

    async def submit(self, priority: str, queue: str = "queue", **nodes: int) -> None:
        container = {"name": "trainer", "image": "train:test", "resources": {"requests": {"cpu": "10"}}}
        template = {"spec": {"serviceAccountName": "default", "containers": [container]}}
        spec = {"nodes": nodes, "template": template, "faultPolicy": {"heartbeat": {"lost": "1m"}}}
        job = job_manifest(self.cluster.namespace, "gpt", **spec)
        job["metadata"]["labels"] = {QUEUE_LABEL: queue, QUEUE_PRIORITY_LABEL: priority}
        await self.cluster.api.call("POST", self.cluster.path(), job)

    async def runs(self, world: int) -> Manifest:
        """Until it trains with so many nodes."""

        def so(job: Manifest | None) -> bool:
            return phase(job) == "Running" and job is not None and job["status"]["worldSize"] == world

        job = await self.cluster.until(f"running with {world}", so, within_s=WITHIN_S)
        assert job is not None
        return job

    async def workload(self) -> Manifest:
        return await self.cluster.get(self._path) or {}

    async def change(self, patch: Manifest) -> None:
        """The Workload, as an administrator does by hand."""
        await self.cluster.api.call("PATCH", self._path, patch, content="application/merge-patch+json")

    async def remove_workload(self) -> None:
        await self.cluster.api.call("DELETE", self._path)

    async def until_gone(self) -> None:
        async def so() -> bool:
            return await self.workload() == {}

        await eventually("no Workload", so, within_s=WITHIN_S)

    async def until_another(self, uid: str) -> None:
        """Until another Workload than that is admitted."""

        async def so() -> bool:
            found = await self.workload()
            return condition(found, "Admitted") == "True" and found["metadata"]["uid"] != uid

        await eventually("another Workload admitted", so, within_s=WITHIN_S)

    async def until_workload(self, what: str, type_: str, status: str) -> Manifest:
        found: Manifest = {}

        async def so() -> bool:
            nonlocal found
            found = await self.workload()
            return condition(found, type_) == status

        await eventually(what, so, lambda: found.get("status"), within_s=WITHIN_S)
        return found


@dataclass
class Count:
    """The most pods that were bound to nodes at one time."""

    teams: Iterable[Team]
    most: int = 0

    async def follow(self) -> None:
        while True:
            pods = [pod for team in self.teams for pod in team.kubelet.pods.values()]
            self.most = max(self.most, sum(1 for pod in pods if pod.node and pod.phase in ("Pending", "Running")))
            await asyncio.sleep(0.01)


async def make(server: ApiServer, namespaces: Iterable[str]) -> None:
    """A quota for `QUOTA` nodes, one queue for it in each namespace, and two priorities."""

    def post(plural: str, kind: str, name: str, where: str = "", **fields: Any) -> None:
        path = f"{API}/namespaces/{where}/{plural}" if where else f"{API}/{plural}"
        metadata = {"name": name, **({"namespace": where} if where else {})}
        server.call(
            "POST", path, {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, **fields}
        )

    post("resourceflavors", "ResourceFlavor", "h100", spec={"nodeLabels": {"pool": "h100"}})
    quota = {"name": "h100", "resources": [{"name": "cpu", "nominalQuota": str(10 * QUOTA)}]}
    spec = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [quota]}],
    }
    post("clusterqueues", "ClusterQueue", "cluster", spec=spec)
    for name, value in (("research", 10), ("urgent", 1000)):
        post("workloadpriorityclasses", "WorkloadPriorityClass", name, value=value)
    for namespace in namespaces:
        post("localqueues", "LocalQueue", "queue", namespace, spec={"clusterQueue": "cluster"})


@asynccontextmanager
async def stage() -> AsyncIterator[tuple[Team, Team, Team, Team]]:
    """Teams beside a real API server, Kueue, operator and watchdog; the last is `LEARNER`, without a queue."""
    async with AsyncExitStack() as stack:
        server = ApiServer()
        stack.callback(server.close)
        await asyncio.to_thread(server.start)
        for definition in definitions().values():
            server.call("POST", CRDS, definition)
        kueue = KueueController(server)
        try:
            await asyncio.to_thread(kueue.start)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-")))
            _, endpoint = stack.enter_context(started_watchdog(folder))
            names = [server.new_namespace() for _ in range(3)]
            await make(server, names)
            server.call("POST", "/api/v1/namespaces", {"metadata": {"name": LEARNER}})
            server.new_service_account(LEARNER, "default")
            teams = []
            for name in (*names, LEARNER):
                cluster = Cluster(server, name)
                stack.push_async_callback(cluster.close)
                kubelet = await stack.enter_async_context(Nodes(server, name))
                await kubelet.add_nodes([f"{name}-n{each}" for each in range(QUOTA)], labels={"pool": "h100"})
                launchers = await stack.enter_async_context(PlayedLaunchers(kubelet, endpoint, cluster.id()))
                teams.append(Team(cluster, kubelet, launchers))
            operator = OperatorProcess(server, names[0], endpoint, folder)
            stack.callback(lambda: print(operator.log.read_text(), flush=True))
            stack.callback(operator.stop)
            operator.start("--kueue", *(f"--namespace={name}" for name in (*names[1:], LEARNER)))
            yield teams[0], teams[1], teams[2], teams[3]
        except BaseException:
            print(kueue.log.read_text()[-20000:] if kueue.log.exists() else "Kueue was not started", flush=True)
            raise


def told(job: Manifest | None, type_: str) -> str:
    """Reason and message of that condition."""
    conditions = ((job or {}).get("status") or {}).get("conditions") or []
    return next((f"{each['reason']}: {each['message']}" for each in conditions if each["type"] == type_), "")
