"""What happens to the job, act by act, and what each showed."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.api.plan import NodeOrder, NodeState, PodState
from kube.audit import Write, counted, of_kind, span_s
from kube.cluster import JOBS, NAMESPACE, Cluster
from kube.job import NAME, job_manifest
from kube.programs import Operator, Watchdog, peer, told_by

QUIET_S: Final = 2.5  # this long without a write: an act is over
POLL_S: Final = 0.2
HEARD_POLL_S: Final = 0.05
WITHIN_S: Final = 300.0
JOB: Final = f"{NAMESPACE}/{NAME}"
POD_CREATED: Final = "create pods"
POD_DELETED: Final = "delete pods"


@dataclass(frozen=True, slots=True)
class Creation:
    span_s: float
    cpu_s: float
    peak_mb: float
    writes: list[Write]


@dataclass(frozen=True, slots=True)
class Storm:
    """Every pod's status was written once. Times until the watchdog had heard of all of it."""

    wall_s: float
    cpu_s: float
    looks: float
    bare_cpu_s: float
    writes: list[Write]


@dataclass(frozen=True, slots=True)
class Loss:
    """Nodes failed. Times are until the last replacement's creation was answered."""

    since_seen_s: float
    since_plan_s: float
    cpu_s: float
    writes: list[Write]


@dataclass(frozen=True, slots=True)
class Idle:
    """A restart with nothing to do, then looks with nothing to do."""

    ready_s: float
    resident_mb: float
    peak_mb: float
    look_cpu_s: float
    looks: float
    restart_writes: list[Write]
    look_writes: list[Write]


@dataclass
class Play:
    """The job is made by `create` and then has `members` pods; `free` are nodes without one."""

    cluster: Cluster
    operator: Operator
    watchdog: Watchdog
    members: int
    free: list[str] = field(default_factory=list)
    where: dict[str, str] = field(default_factory=dict)

    async def create(self) -> Creation:
        begun, cpu = self.cluster.audit.read(), self.operator.cpu_s()
        await self.cluster.api.call("POST", JOBS, job_manifest(NAMESPACE, self.members))
        await self._until(lambda: len(self._created(begun)) >= self.members, "every pod created")
        await self._quiet()
        writes = self.cluster.audit.since(begun)
        return Creation(
            span_s(of_kind(writes, POD_CREATED)),
            self.operator.cpu_s() - cpu,
            self.operator.memory().peak_mb,
            writes,
        )

    async def settle_in(self) -> Storm:
        """Every pod gets a node and then runs; the second half is what is measured."""
        self.free = list(self.cluster.nodes)
        names = [f"{NAME}-{number}" for number in range(self.members)]
        await self._place(names)
        job = self.watchdog.job(JOB)
        await self._heard(lambda: all(job.pods[name].node for name in names), "every pod's node told")
        await self._quiet()
        begun = self.cluster.audit.read()
        async with peer("watch", self.cluster, self.members) as bare:
            assert bare.stdout is not None
            assert await bare.stdout.readline() == b"watching\n"
            looks, cpu, began = await self.operator.looks(), self.operator.cpu_s(), time.monotonic()
            await self._start(names)
            await self._heard(
                lambda: all(job.pods[name].state is PodState.RUNNING for name in names),
                "every pod told as running",
            )
            wall_s, cpu_s = time.monotonic() - began, self.operator.cpu_s() - cpu
            looks, told = await self.operator.looks() - looks, await told_by(bare)
        await self._quiet()
        return Storm(wall_s, cpu_s, looks, told["watch_cpu_s"], self.cluster.audit.since(begun))

    async def lose(self, count: int) -> Loss:
        """The machines of `count` members; the watchdog replaces them, and later gives the machines back."""
        lost = dict(list(self.where.items())[:count])
        nodes = list(lost.values())
        job = self.watchdog.job(JOB)
        begun, cpu = self.cluster.audit.read(), self.operator.cpu_s()
        await self.cluster.lose(nodes)
        seen_at = _now()
        dead = (NodeState.NOT_READY, NodeState.GONE)
        await self._heard(lambda: all(job.nodes[node].state in dead for node in nodes), "every lost node told")
        orders = tuple(NodeOrder(node, "nothing is heard of it", "inc-1") for node in nodes)
        shown_at = _now()
        await self.watchdog.script(JOB, avoid=orders, cordon=orders, release=tuple(lost))
        await self._until(lambda: len(self._created(begun)) >= count, "every replacement created")
        cpu_s = self.operator.cpu_s() - cpu
        await self._quiet()
        writes = self.cluster.audit.since(begun)
        posted_at = max(each.answered_at for each in of_kind(writes, POD_CREATED))
        await self._heal(lost)
        return Loss(posted_at - seen_at, posted_at - shown_at, cpu_s, writes)

    async def restart(self, looks_wanted: int) -> Idle:
        """The operator again, over a job that is as it should be."""
        self.operator.stop()
        job = self.watchdog.job(JOB)
        job.pods.clear()
        begun, began = self.cluster.audit.read(), time.monotonic()
        await self.operator.begin(resync_s=1.0)
        ready_s = time.monotonic() - began
        await self._heard(lambda: len(job.pods) >= self.members, "every pod told again")
        await self._quiet()
        settled = self.cluster.audit.read()
        looks, cpu = await self.operator.looks(), self.operator.cpu_s()
        deadline = time.monotonic() + WITHIN_S
        while (done := await self.operator.looks() - looks) < looks_wanted:
            assert time.monotonic() < deadline, f"{done} looks within {WITHIN_S} s"
            await asyncio.sleep(POLL_S)
        look_cpu_s = (self.operator.cpu_s() - cpu) / done
        self.cluster.audit.read()
        writes, memory = self.cluster.audit.since(begun), self.operator.memory()
        late = self.cluster.audit.since(settled)
        return Idle(
            *(ready_s, memory.resident_mb, memory.peak_mb, look_cpu_s, done),
            *(writes[: len(writes) - len(late)], late),
        )

    async def progress(self, reports: int, every_s: float) -> list[Write]:
        """The training makes steps, and the watchdog says so again and again."""
        begun, job = self.cluster.audit.read(), self.watchdog.job(JOB)
        for _ in range(reports):
            job.step += 1
            await self.watchdog.script(JOB)
            await asyncio.sleep(every_s)
        self.cluster.audit.read()
        return self.cluster.audit.since(begun)

    async def _heal(self, lost: dict[str, str]) -> None:
        """The machines come back as free ones; the replacements get places and run."""
        await self.watchdog.script(JOB, avoid=(), cordon=(), release=(), returned=tuple(lost.values()))
        await self._quiet()
        await self.watchdog.script(JOB, returned=())
        await self.cluster.recover(lost.values())
        for name in lost:
            del self.where[name]
        unplaced = await self._unplaced()
        await self._place(unplaced)
        await self._start(unplaced)
        await self._quiet()
        self.free += lost.values()

    async def _unplaced(self) -> list[str]:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?fieldSelector=spec.nodeName%3D"
        listed: dict[str, Any] = await self.cluster.api.call("GET", path)
        return [each["metadata"]["name"] for each in listed["items"]]

    async def _place(self, names: Sequence[str]) -> None:
        places = {name: self.free.pop() for name in names}
        await self.cluster.place(places)
        self.where |= places

    async def _start(self, names: Sequence[str]) -> None:
        shape = await self.cluster.api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/{names[0]}")
        await self.cluster.start({**shape, "metadata": {"name": name}} for name in names)

    def _created(self, begun: int) -> list[Write]:
        return of_kind(self.cluster.audit.since(begun), POD_CREATED)

    async def _until(self, so: Callable[[], bool], what: str) -> None:
        """Until the API server's log says so."""
        deadline = time.monotonic() + WITHIN_S
        while self.cluster.audit.read() >= 0 and not so():
            seen = counted(self.cluster.audit.writes)
            assert time.monotonic() < deadline, f"not {what} within {WITHIN_S} s; written: {seen}"
            await asyncio.sleep(POLL_S)

    async def _heard(self, so: Callable[[], bool], what: str) -> None:
        """Until the watchdog was told. A KeyError counts as: it was not told of that yet."""
        deadline = time.monotonic() + WITHIN_S
        while not _known(so):
            assert time.monotonic() < deadline, f"not {what} within {WITHIN_S} s"
            await asyncio.sleep(HEARD_POLL_S)

    async def _quiet(self) -> None:
        """Until nothing was written for a while."""
        seen, since = self.cluster.audit.read(), time.monotonic()
        while time.monotonic() - since < QUIET_S:
            await asyncio.sleep(POLL_S)
            if (now := self.cluster.audit.read()) != seen:
                seen, since = now, time.monotonic()


def _known(so: Callable[[], bool]) -> bool:
    try:
        return so()
    except KeyError:
        return False


def _now() -> float:
    """On the API server's clock: it is the same machine's."""
    return datetime.now(UTC).timestamp()
