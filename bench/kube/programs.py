"""The operator as its own process, a watchdog that answers by script, and peers run to their end."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import meter
import msgspec
from fake_watchdog_for_operator import FakeJob, FakeOperatorWatchdog
from operator_rig import OperatorProcess, eventually

from holdfast.api.status import JobStatus
from kube.audit import BARE, OPERATOR
from kube.cluster import NAMESPACE, Cluster

BENCH: Final = Path(__file__).parents[1]
ADMINISTRATORS: Final = ("system:masters",)  # exempt from the API server's own priority and fairness
READY_WITHIN_S: Final = 60.0


class Operator(OperatorProcess):
    """`python -m holdfast.operator`, under a name of its own in the API server's log."""

    def __init__(self, cluster: Cluster, watchdog: str, folder: Path) -> None:
        super().__init__(cluster.server, NAMESPACE, watchdog, folder)
        self._login = ("--kubeconfig", str(cluster.server.kubeconfig(OPERATOR, ADMINISTRATORS)))

    async def begin(self, *, resync_s: float) -> None:
        """Start; returns when it sees the cluster and leads."""
        self.start(*self._login, "--resync", str(resync_s), "--lease-seconds", "15", "--log-level", "WARNING")
        await eventually("ready", self.ready, self.log.read_text, within_s=READY_WITHIN_S)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def cpu_s(self) -> float:
        return meter.cpu_s(self.pid)

    def memory(self) -> meter.Memory:
        return meter.memory(self.pid)

    async def looks(self) -> float:
        """How often it looked at a job."""
        return await self.metric("holdfast_operator_reconcile_total")


@dataclass
class ScriptedJob(FakeJob):
    """A job that also makes steps."""

    step: int = 1

    def status(self) -> JobStatus:
        return msgspec.structs.replace(super().status(), step=self.step)


class Watchdog(FakeOperatorWatchdog):
    """Answers as the real one would, when it is told to."""

    def job(self, name: str) -> ScriptedJob:
        job = self.jobs.setdefault(name, ScriptedJob(name))
        assert isinstance(job, ScriptedJob)
        return job


async def run_peer(kind: str, cluster: Cluster, count: int) -> dict[str, float]:
    """What a peer said it took."""
    async with peer(kind, cluster, count) as process:
        return await told_by(process)


@asynccontextmanager
async def peer(kind: str, cluster: Cluster, count: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A peer that may have to be waited for in the middle."""
    kubeconfig = str(cluster.server.kubeconfig(BARE, ADMINISTRATORS))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kube.peer", kind, kubeconfig, str(count)),
        cwd=BENCH,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def told_by(process: asyncio.subprocess.Process) -> dict[str, float]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError(f"a peer ended with {await process.wait()} and said nothing")
    told: dict[str, Any] = json.loads(line)
    return told
