"""Executes a fault script against the run: watches the step, does each fault once and in order."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from holdfast.agent.sensors.fault_script import Fault, inject
from holdfast.api.bitflip import BitFlip, request_bit_flip
from holdfast.api.errors import Unavailable
from holdfast.api.status import JobPhase, JobStatus, RankStatus
from holdfast.cli.embedded.faultscript import After, Deed, ScriptedFault
from holdfast.cli.embedded.link import WatchdogLink
from holdfast.cli.embedded.localcluster import LocalCluster
from holdfast.cli.embedded.localnode import LocalNode, send
from holdfast.cli.embedded.watchdogprocess import WatchdogProcess

LOOK_INTERVAL_S: Final = 0.1
# A fault's incident opens within this, so that "recovered" is not said before it has begun.
NOTICE_S: Final = 5.0
WHOM_S: Final = 30.0
Answer = TypeVar("Answer")


def is_due(fault: ScriptedFault, status: JobStatus) -> bool:
    """Whether the fault is to happen now."""
    if status.step is None or status.step < fault.at.step:
        return False
    return fault.after is not After.RECOVERED or (status.incidents_open == 0 and status.phase is JobPhase.RUNNING)


class Injector:
    """One script against one run."""

    def __init__(
        self, link: WatchdogLink, cluster: LocalCluster, watchdog: WatchdogProcess, say: Callable[[str], None]
    ) -> None:
        self._link = link
        self._cluster = cluster
        self._watchdog = watchdog
        self._say = say
        self._waiting: list[ScriptedFault] = []
        self._missed: list[str] = []
        self._wrong: list[ScriptedFault] = []  # nothing to inject: their nodes are started so

    @property
    def missed(self) -> tuple[str, ...]:
        """The faults that were not injected so far, and why; those whose time has not come are among them."""
        started = self._cluster.ever_started()
        return (
            *self._missed,
            *(f"{fault}: step {fault.at.step} came too late for it" for fault in self._waiting),
            *(f"{fault}: that node was never started" for fault in self._wrong if fault.node not in started),
        )

    async def run(self, script: Sequence[ScriptedFault]) -> None:
        """Do all of it. A fault that finds nobody to happen to is told, kept in `missed`, and passed over."""
        self._wrong = [fault for fault in script if fault.do is Deed.COMPUTE_WRONG]
        self._waiting = [fault for fault in script if fault.do is not Deed.COMPUTE_WRONG]
        for fault in tuple(self._waiting):
            await self._wait_until_due(fault)
            status = await _reach(self._link.status())
            before = status.incidents_total if status else 0
            try:
                await self._do(fault)
            except Unavailable as error:
                self._missed.append(str(error))
                self._say(f"NOT INJECTED: {error}")
                continue
            finally:
                self._waiting.remove(fault)
            if fault.do is not Deed.KILL_WATCHDOG:
                await self._wait_until_noticed(before)

    async def _wait_until_due(self, fault: ScriptedFault) -> None:
        while True:
            status = await _reach(self._link.status())
            if status is not None and is_due(fault, status):
                return
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _wait_until_noticed(self, before: int) -> None:
        for _ in range(int(NOTICE_S / LOOK_INTERVAL_S)):
            status = await _reach(self._link.status())
            if status is not None and status.incidents_total > before:
                return
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _do(self, fault: ScriptedFault) -> None:
        self._say(f"injecting: {fault}")
        match fault.do:
            case Deed.KILL_WATCHDOG:
                if self._watchdog.pid is not None:
                    send(self._watchdog.pid, signal.SIGKILL)
            case Deed.KILL_WORKER:
                send(await self._worker_of(fault), signal.SIGKILL)
            case Deed.STOP_WORKER:
                send(await self._worker_of(fault), signal.SIGSTOP)
            case Deed.FLIP_BIT:
                rank = fault.rank or 0
                flip = BitFlip(rank=rank, step=fault.at.step, bit=12 if fault.bit is None else fault.bit)
                request_bit_flip((await self._node_of(fault)).run_directory, flip)
            case Deed.KILL_NODE:
                (await self._node_of(fault)).kill()
            case Deed.KILL_LAUNCHER:
                (await self._node_of(fault)).launcher.send(signal.SIGKILL)
            case Deed.XID:
                happening = Fault(gpu=fault.gpu or 0, xid=fault.xid, text=f"injected XID {fault.xid}")
                inject(str((await self._node_of(fault)).run_directory), happening)
            case Deed.GPU_LOST:
                happening = Fault(gpu=fault.gpu or 0, lost=True, text="injected loss")
                inject(str((await self._node_of(fault)).run_directory), happening)

    async def _worker_of(self, fault: ScriptedFault) -> int:
        for _ in range(int(WHOM_S / LOOK_INTERVAL_S)):
            rank = await self._rank(fault.rank)
            if rank is not None and rank.pid is not None:
                return rank.pid
            await asyncio.sleep(LOOK_INTERVAL_S)
        ranks = await _reach(self._link.ranks()) or ()
        known = ", ".join(str(rank.rank) for rank in ranks) or "none"
        raise Unavailable(f"{fault}: there is no process of that rank; the ranks there are: {known}")

    async def _node_of(self, fault: ScriptedFault) -> LocalNode:
        for _ in range(int(WHOM_S / LOOK_INTERVAL_S)):
            name = fault.node
            if name is None and (rank := await self._rank(fault.rank)) is not None:
                name = rank.node
            node = self._cluster.node(name) if name is not None else None
            if node is not None:
                return node
            await asyncio.sleep(LOOK_INTERVAL_S)
        known = ", ".join(self._cluster.names()) or "none"
        raise Unavailable(f"{fault}: that node is not up; the nodes that are: {known}")

    async def _rank(self, wanted: int | None) -> RankStatus | None:
        ranks = await _reach(self._link.ranks())
        return next((rank for rank in ranks or () if rank.rank == wanted), None)


async def _reach(answer: Awaitable[Answer]) -> Answer | None:
    """What the watchdog says, None while it is away."""
    try:
        return await answer
    except Unavailable:
        return None
