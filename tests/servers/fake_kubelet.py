"""Plays scheduler and kubelets for pods of one namespace, on nodes that exist only as objects.

What it does is in `FakeKubelet`; where a pod may go is in placement.py. It lives in the event loop of its test,
reads the API server through watches, and survives the server's restarts. One of it plays 12,500 pods.

It never decides about pods as controllers do: nothing is evicted for a taint, no orphan is collected. Start a real
controller manager beside it with `--controllers=*,-nodelifecycle`, for these nodes send no heartbeats.
"""

import asyncio
import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Self
from uuid import uuid4

import pod_status
from api_stream import ApiStream
from apiserver import ApiServer, Refused
from patience import patient
from placement import Rooms, Tenant, room_of, tenant_of

Manifest = dict[str, Any]
MERGE = "application/strategic-merge-patch+json"
OWNER_LABEL = "test.holdfast/played-by"
CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
SCHEDULE_S = 0.02  # pods that come within this time of one another are placed in one go
POLL_S = 0.02


class Step(enum.Enum):
    """What a pod needs next."""

    BIND = enum.auto()
    START = enum.auto()
    REMOVE = enum.auto()


@dataclass
class Pod:
    """A pod as last seen, without what nobody here reads."""

    name: str
    uid: str
    node: str
    phase: str
    deleting: bool
    tenant: Tenant
    manifest: Manifest
    taken: set[Step] = field(default_factory=set)  # steps on their way or done; each is taken once
    told_unschedulable: bool = False


class FakeKubelet:
    """`async with FakeKubelet(server, namespace) as kubelet`; its nodes are gone afterwards.

    Pods of the namespace are bound to the nodes added here, and to no others; they are Running `start_delay_s`
    after that, and gone `stop_delay_s` after they were deleted. A silent node does nothing more for its pods.
    """

    def __init__(
        self,
        server: ApiServer,
        namespace: str,
        *,
        start_delay_s: float = 0.0,
        stop_delay_s: float = 0.0,
        concurrency: int = 32,
    ):
        self.namespace = namespace
        self.start_delay_s = start_delay_s
        self.stop_delay_s = stop_delay_s
        self.api = ApiStream(server, concurrency)
        self.pods: dict[str, Pod] = {}
        self._concurrency = concurrency
        self._id = uuid4().hex[:12]
        self._rooms = Rooms()
        self._silent: set[str] = set()
        self._refused: dict[str, tuple[str, str]] = {}
        self._pending: dict[str, None] = {}  # names of pods without a node, in order of arrival
        self._assumed: dict[str, str] = {}  # pod uid -> node, while the binding is on its way
        self._work: asyncio.Queue[tuple[Pod, Step]] = asyncio.Queue()
        self._unplaced = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._addresses = 0

    async def __aenter__(self) -> Self:
        parts = [self._follow_nodes(), self._follow_pods(), self._place()]
        parts += [self._labour() for _ in range(self._concurrency)]
        self._tasks = [asyncio.create_task(each) for each in parts]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self.api.call("DELETE", f"/api/v1/nodes?labelSelector={OWNER_LABEL}%3D{self._id}")
        finally:
            await self.api.close()
        self._check()

    # Nodes

    async def add_nodes(
        self,
        names: Iterable[str],
        *,
        labels: Mapping[str, str] | None = None,
        capacity: Mapping[str, str] | None = None,
        taints: Iterable[Manifest] = (),
    ) -> None:
        """Create ready nodes. Names are the cluster's, so tests that share a server choose their own."""
        gate = asyncio.Semaphore(self._concurrency)

        async def add(name: str) -> None:
            mine = {OWNER_LABEL: self._id, **(labels or {})}
            manifest = pod_status.node_manifest(name, mine, dict(capacity or CAPACITY), list(taints))
            async with gate:
                made = await self.api.call("POST", "/api/v1/nodes", manifest)
                if made["spec"].get("taints", []) != list(
                    taints
                ):  # admission taints a node until it is seen ready
                    await self._patch(f"/api/v1/nodes/{name}", {"spec": {"taints": list(taints)}})

        await asyncio.gather(*(add(name) for name in names))

    async def set_node(self, name: str, ready: Literal["True", "False", "Unknown"]) -> None:
        """What the node controller would write. Unknown: the machine is lost and does nothing until it is True.

        The pods of a node that is not ready become not ready; none is evicted.
        """
        (self._silent.add if ready == "Unknown" else self._silent.discard)(name)
        now = _now()
        await self._patch(f"/api/v1/nodes/{name}/status", pod_status.node_ready(ready, now))
        node = await self.api.call("GET", f"/api/v1/nodes/{name}")
        ours = (pod_status.UNREACHABLE, pod_status.NOT_READY)
        kept = [taint for taint in node["spec"].get("taints", []) if taint["key"] not in ours]
        taints = {"spec": {"taints": kept + pod_status.taints_of(ready)}}
        await self._patch(f"/api/v1/nodes/{name}", taints)
        for pod in [each for each in self.pods.values() if each.node == name]:
            if pod.phase == "Running":
                shown = pod_status.pod_ready("True" if ready == "True" else "False", now)
                await self._attempt(self._patch(f"{self._path(pod)}/status", shown))
            self._consider(pod)  # what was left undone while the node was silent

    async def delete_node(self, name: str) -> None:
        """Take the node out of the cluster; its pods stay as they are, and nobody acts for them."""
        self._silent.add(name)
        await self.api.call("DELETE", f"/api/v1/nodes/{name}")

    # Pods

    async def end_pod(self, name: str, exit_code: int, reason: str = "", message: str = "") -> None:
        """Its containers end: Succeeded with 0, else Failed. `reason` e.g. OOMKilled; `message` are last words."""
        pod = self._seen(name)
        reason = reason or ("Completed" if exit_code == 0 else "Error")
        ended = pod_status.ended(pod.manifest, exit_code, reason, _now(), message)
        await self._patch(f"{self._path(pod)}/status", ended)

    async def evict_pod(self, name: str, message: str = "The node was low on resource: memory.") -> None:
        """The kubelet takes its place away: Failed, reason Evicted."""
        await self._patch(f"{self._path(self._seen(name))}/status", pod_status.evicted(message))

    def refuse_pod(self, name: str, reason: str = "ImagePullBackOff", message: str = "no such image") -> None:
        """A pod of that name is bound but never starts. Say it before the pod is created."""
        self._refused[name] = (reason, message)

    async def wait(self, what: str, seen: Callable[[dict[str, Pod]], bool], within_s: float = 10.0) -> None:
        """Until the pods (by name) are as wanted; a KeyError counts as: that pod is not there yet.

        Raises AssertionError that says how they are.
        """

        def is_so() -> bool:
            try:
                return seen(self.pods)
            except KeyError:
                return False

        deadline = asyncio.get_running_loop().time() + patient(within_s)
        while not is_so():
            self._check()
            if asyncio.get_running_loop().time() > deadline:
                shown = [(each.name, each.node, each.phase, each.deleting) for each in self.pods.values()][:20]
                raise AssertionError(f"not {what} within {within_s} s; pods are {shown}")
            await asyncio.sleep(POLL_S)

    async def wait_running(self, count: int, within_s: float = 10.0) -> None:
        def enough(pods: dict[str, Pod]) -> bool:
            return sum(each.phase == "Running" and not each.deleting for each in pods.values()) == count

        await self.wait(f"{count} pods Running", enough, within_s)

    # What is seen

    def _check(self) -> None:
        """Raise what ended a part of the player: a fault of its own must not pass for one of the tested."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _follow_nodes(self) -> None:
        async for kind, node in self.api.follow("/api/v1/nodes", f"{OWNER_LABEL}%3D{self._id}"):
            if kind == "DELETED":
                self._rooms.remove(node["metadata"]["name"])
            elif kind != "CLEARED":
                self._rooms.put(room_of(node))
            self._unplaced.set()

    async def _follow_pods(self) -> None:
        async for kind, manifest in self.api.follow(f"/api/v1/namespaces/{self.namespace}/pods"):
            if kind == "CLEARED":
                self._forget_all()
            elif kind == "DELETED":
                self._forget(manifest["metadata"]["name"])
            else:
                self._see(manifest)

    def _see(self, manifest: Manifest) -> None:
        metadata = manifest["metadata"]
        known = self.pods.get(metadata["name"])
        pod = _read(manifest)
        if known is not None and known.uid == pod.uid:
            pod.taken, pod.told_unschedulable = known.taken, known.told_unschedulable
        elif known is not None:
            self._forget(known.name)
        self.pods[pod.name] = pod
        node = pod.node or self._assumed.get(pod.uid, "")
        if node in self._rooms.rooms:
            tenants = self._rooms.rooms[node].tenants
            if pod.phase in ("Succeeded", "Failed"):
                if tenants.pop(pod.uid, None) is not None:
                    self._unplaced.set()
            else:
                tenants[pod.uid] = pod.tenant
        if pod.node or pod.deleting or pod.phase != "Pending":
            self._pending.pop(pod.name, None)
        else:
            self._pending[pod.name] = None
        self._consider(pod)

    def _forget(self, name: str) -> None:
        pod = self.pods.pop(name, None)
        self._pending.pop(name, None)
        if pod is not None:
            room = self._rooms.rooms.get(pod.node)
            if room is not None and room.tenants.pop(pod.uid, None) is not None:
                self._unplaced.set()

    def _forget_all(self) -> None:
        self.pods.clear()
        self._pending.clear()
        for room in self._rooms.rooms.values():
            room.tenants = {uid: each for uid, each in room.tenants.items() if uid in self._assumed}

    def _consider(self, pod: Pod) -> None:
        """Take the pod's next step, unless it was taken."""
        if pod.deleting:
            self._take(pod, Step.REMOVE, self.stop_delay_s)
        elif not pod.node:
            self._unplaced.set()
        elif pod.phase == "Pending":
            self._take(pod, Step.START, self.start_delay_s)

    def _take(self, pod: Pod, step: Step, delay_s: float) -> None:
        if pod.node not in self._rooms.rooms and step is not Step.BIND:
            return  # a node of somebody else, or one that is gone
        if pod.node in self._silent or step in pod.taken:
            return
        pod.taken.add(step)
        if delay_s > 0:
            asyncio.get_running_loop().call_later(delay_s, self._work.put_nowait, (pod, step))
        else:
            self._work.put_nowait((pod, step))

    # What is done

    async def _place(self) -> None:
        """Bind what has no node, in order of arrival; what does not fit waits for a change."""
        while True:
            await self._unplaced.wait()
            await asyncio.sleep(SCHEDULE_S)
            self._unplaced.clear()
            for name in list(self._pending):
                pod = self.pods.get(name)
                if pod is not None and Step.BIND not in pod.taken:
                    await self._place_one(pod)

    async def _place_one(self, pod: Pod) -> None:
        room = self._rooms.find(pod.tenant)
        if room is not None:
            room.tenants[pod.uid] = pod.tenant
            self._assumed[pod.uid] = room.name
            self._take(pod, Step.BIND, 0.0)
        elif not pod.told_unschedulable:
            message = f"0/{len(self._rooms.rooms)} nodes are available."
            await self._attempt(
                self._patch(f"{self._path(pod)}/status", pod_status.unschedulable(message, _now()))
            )
            pod.told_unschedulable = True

    async def _labour(self) -> None:
        while True:
            pod, step = await self._work.get()
            match step:
                case Step.BIND:
                    await self._bind(pod)
                case Step.START if pod.node not in self._silent:
                    await self._start(pod)
                case Step.REMOVE if pod.node not in self._silent:
                    await self._remove(pod)
                case _:
                    pod.taken.discard(step)  # the node fell silent meanwhile

    async def _bind(self, pod: Pod) -> None:
        node = self._assumed[pod.uid]
        binding = {
            "metadata": {"name": pod.name, "uid": pod.uid},
            "target": {"kind": "Node", "name": node},
        }
        bound = await self._attempt(self.api.call("POST", f"{self._path(pod)}/binding", binding))
        del self._assumed[pod.uid]
        now = self.pods.get(pod.name)
        if not bound and (now is None or now.node != node):  # bound after all, when only the answer was lost
            pod.taken.discard(Step.BIND)
            if node in self._rooms.rooms:
                self._rooms.rooms[node].tenants.pop(pod.uid, None)
            self._unplaced.set()

    async def _start(self, pod: Pod) -> None:
        if pod.name in self._refused:
            patch = pod_status.waiting(pod.manifest, *self._refused[pod.name])
        else:
            self._addresses += 1
            high, low = divmod(self._addresses, 250)
            patch = pod_status.running(pod.manifest, f"10.{100 + high // 250}.{high % 250}.{low + 1}", _now())
        await self._attempt(self._patch(f"{self._path(pod)}/status", patch, uid=pod.uid))

    async def _remove(self, pod: Pod) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
        await self._attempt(self.api.call("DELETE", self._path(pod), options))

    async def _attempt(self, request: Any) -> bool:
        """Whether it was done. What is gone or has changed meanwhile shows up in the watch again."""
        try:
            await request
        except Refused as refused:
            if refused.code not in (404, 409, 422):
                raise
            return False
        return True

    async def _patch(self, path: str, patch: Manifest, *, uid: str = "") -> None:
        body = {**patch, "metadata": {"uid": uid}} if uid else patch
        await self.api.call("PATCH", path, body, content=MERGE)

    def _path(self, pod: Pod) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{pod.name}"

    def _seen(self, name: str) -> Pod:
        if name not in self.pods:
            raise KeyError(f"no pod {name} in {self.namespace}; there are {sorted(self.pods)[:20]}")
        return self.pods[name]


def _read(manifest: Manifest) -> Pod:
    metadata, spec = manifest["metadata"], manifest["spec"]
    containers = {
        key: [{"name": each["name"], "image": each.get("image", "")} for each in spec.get(key, ())]
        for key in ("initContainers", "containers")
    }
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        node=spec.get("nodeName", ""),
        phase=manifest.get("status", {}).get("phase", ""),
        deleting="deletionTimestamp" in metadata,
        tenant=tenant_of(manifest),
        manifest={"spec": containers},
    )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
