"""A cluster of many nodes that nobody runs: the real API server, and clients that play its kubelets in bulk."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from api_stream import ApiStream
from apiserver import ApiServer, ApiServerSettings, Refused
from pod_status import node_manifest, node_ready, running, taints_of

from holdfast.operator.crd import definitions
from kube.audit import POLICY, AuditLog

AT_ONCE: Final = 64
NAMESPACE: Final = "training"
MERGE: Final = "application/merge-patch+json"
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
JOBS: Final = f"/apis/holdfast.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs"
CAPACITY: Final = {"cpu": "192", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": "8"}
SERVED_WITHIN_S: Final = 30.0
FLAGS: Final = (
    # A node is used as it is made: there is no node controller that would take the taint off again.
    "--disable-admission-plugins=TaintNodesByCondition",
    # Far above what the clients here have under way at once.
    "--max-requests-inflight=4000",
    "--max-mutating-requests-inflight=2000",
    "--audit-log-maxsize=10000",
)

Manifest = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Cluster:
    """`nodes` are all there are, none of them in use at first."""

    server: ApiServer
    api: ApiStream
    audit: AuditLog
    nodes: list[str]

    async def add_nodes(self, count: int) -> None:
        names = [f"node-{number:05d}" for number in range(count)]
        await in_bulk(self._add_node, names)
        self.nodes.extend(names)

    async def place(self, pods: dict[str, str]) -> None:
        """Bind pods to nodes: name to name."""

        async def bind(name: str) -> None:
            binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": pods[name]}}
            await self.api.call("POST", f"{_pod(name)}/binding", binding)

        await in_bulk(bind, pods)

    async def start(self, pods: Iterable[Manifest], namespace: str = NAMESPACE) -> None:
        """Every pod's status as a kubelet writes it once all containers run."""

        async def start(pod: Manifest) -> None:
            patch = running(pod, "10.1.2.3", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
            await self.api.call(
                "PATCH", f"{_pod(pod['metadata']['name'], namespace)}/status", patch, content=MERGE
            )

        await in_bulk(start, pods)

    async def pods(self, namespace: str = NAMESPACE) -> list[Manifest]:
        """All of them, from the API server's memory."""
        listed = await self.api.call("GET", f"/api/v1/namespaces/{namespace}/pods?resourceVersion=0")
        items: list[Manifest] = listed["items"]
        return items

    async def lose(self, nodes: Iterable[str]) -> None:
        """What the node controller writes of machines that are not heard of any more."""
        await in_bulk(lambda name: self._set_ready(name, "Unknown"), nodes)

    async def recover(self, nodes: Iterable[str]) -> None:
        await in_bulk(lambda name: self._set_ready(name, "True"), nodes)

    async def _add_node(self, name: str) -> None:
        labels = {f"example.com/rack-{part}": f"{part}-{name[-3:-1]}" for part in ("row", "rack", "switch")}
        await self.api.call("POST", "/api/v1/nodes", node_manifest(name, labels, CAPACITY, []))

    async def _set_ready(self, name: str, ready: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        await self.api.call("PATCH", f"/api/v1/nodes/{name}/status", node_ready(ready, now), content=MERGE)
        taints = {"spec": {"taints": taints_of(ready)}}
        await self.api.call("PATCH", f"/api/v1/nodes/{name}", taints, content=MERGE)


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    """A fresh one; nothing is left of it."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        policy, log = Path(name) / "audit-policy.json", Path(name) / "audit.log"
        policy.write_text(json.dumps(POLICY))  # JSON is YAML
        flags = (*FLAGS, f"--audit-policy-file={policy}", f"--audit-log-path={log}")
        server = ApiServer(ApiServerSettings(flags=flags))
        try:
            await asyncio.to_thread(server.start)
            api = ApiStream(server, AT_ONCE)
            try:
                await _prepare(api)
                yield Cluster(server, api, AuditLog(log), [])
            finally:
                await api.close()
        finally:
            server.close()


async def in_bulk(do: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
    """All of them, many at once."""
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            await do(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())


async def _prepare(api: ApiStream) -> None:
    for definition in definitions().values():
        await api.call("POST", CRDS, definition)
    for namespace in (NAMESPACE, "bare"):
        await api.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    deadline = asyncio.get_running_loop().time() + SERVED_WITHIN_S
    while not await _serves(api, JOBS):
        if asyncio.get_running_loop().time() > deadline:
            raise TimeoutError(f"{JOBS} is not served {SERVED_WITHIN_S} s after its definition was made")
        await asyncio.sleep(0.1)


async def _serves(api: ApiStream, path: str) -> bool:
    try:
        await api.call("GET", path)
        await api.call("GET", path.replace("trainingjobs", "interventions"))
    except (Refused, msgspec.DecodeError):  # a path it does not know is refused in plain text
        return False
    return True


def _pod(name: str, namespace: str = NAMESPACE) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
