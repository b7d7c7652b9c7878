"""Executes a fault script against the run: watches the step, does each fault once and in order."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from holdfast.agent.sensors.simulated_gpu import Fault, inject
from holdfast.api.bitflip import BitFlip, NanOutput, bit_flip_file, nan_file, request_bit_flip, request_nan
from holdfast.api.disturbance import request_disturbance
from holdfast.api.errors import Unavailable
from holdfast.api.incident import Incident
from holdfast.api.status import JobPhase, JobStatus, RankStatus
from holdfast.cli.embedded.childprocess import is_running, send
from holdfast.cli.embedded.faultscript import AILMENTS, DEPARTURES, After, Deed, ScriptedFault, disturbance_of
from holdfast.cli.embedded.localcluster import LocalCluster
from holdfast.cli.embedded.localnode import LocalNode
from holdfast.cli.embedded.watchdog import WatchdogLink, WatchdogProcess

POLL_INTERVAL_S: Final = 0.1
# How long the fault after waits for one to be noticed, so that "recovered" is not said before it has begun. A hang
# and a comparison of parameters take seconds, a departure the start of a node and a checkpoint.
NOTICE_S: Final = 30.0
WHOM_S: Final = 30.0
PARTITION_S: Final = 10.0
NOTICE_GIVEN_S: Final = 120.0
HOT_C: Final = 95.0
_TO_WORKERS: Final = {Deed.KILL_WORKER: signal.SIGKILL, Deed.STOP_WORKER: signal.SIGSTOP}
_NEEDS: Final = {
    Deed.FLIP_BIT: "Run.watch or a Checkpointer, and Run.step",
    Deed.NAN: "Run.watch or a Checkpointer, and Run.step",
    Deed.SPIKE: "Run.step with a loss",
    Deed.WRONG_DATA: "Checkpointer.steps",
    Deed.FULL_DISK: "a Checkpointer that has somewhere to save to, and Run.step",
}
Answer = TypeVar("Answer")


def is_due(fault: ScriptedFault, status: JobStatus) -> bool:
    """Whether the fault is to happen now."""
    begun = status.step if status.step is not None else 0 if status.phase is JobPhase.RUNNING else -1
    if begun < fault.at.step:
        return False
    return fault.after is not After.RECOVERED or (status.incidents_open == 0 and status.phase is JobPhase.RUNNING)


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that happened, and what there was before it."""

    fault: ScriptedFault
    round: int | None
    incidents: frozenset[str]

    def is_noticed(self, status: JobStatus, incidents: Sequence[Incident]) -> bool:
        """Whether something came of it: an incident of its kind, or a new round. One of which nothing comes is."""
        kinds, is_departure = self.fault.do.seen_as, self.fault.do in DEPARTURES
        if not kinds and not is_departure:
            return True
        fresh = [each.kind for each in incidents if each.id not in self.incidents]
        return status.round not in (None, self.round) or any(is_departure or kind in kinds for kind in fresh)


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
        self._doing: ScriptedFault | None = None
        self._missed: list[str] = []
        self._partitions: set[asyncio.Task[None]] = set()
        self._shows_steps = False
        self._wrong: list[ScriptedFault] = []  # nothing to inject: their nodes are started so

    @property
    def missed(self) -> tuple[str, ...]:
        """The faults that were not injected so far, and why; those whose time has not come are among them."""
        missed = list(self._missed)
        for fault in self._waiting:
            if fault is self._doing:
                why_not = "the run ended before it was done"
            elif not self._shows_steps:
                why_not = "the script tells no steps; only `at: {step: 0}` comes without"
            else:
                why_not = f"step {fault.at.step} came too late for it"
            missed.append(f"{fault}: {why_not}")
        never = [fault for fault in self._wrong if fault.node not in self._cluster.started]
        return (*missed, *(f"{fault}: that node was never started" for fault in never))

    async def run(self, script: Sequence[ScriptedFault]) -> None:
        """Do all of it. A fault that finds nobody to happen to is told, kept in `missed`, and passed over."""
        self._wrong = [fault for fault in script if fault.do is Deed.COMPUTE_WRONG]
        self._waiting = [fault for fault in script if fault.do is not Deed.COMPUTE_WRONG]
        last: Injected | None = None
        for fault in tuple(self._waiting):
            if fault.after is not None and last is not None:
                for _ in range(int(NOTICE_S / POLL_INTERVAL_S)):
                    status, incidents = await _reach(self._link.status()), await _reach(self._link.incidents())
                    if status is not None and incidents is not None and last.is_noticed(status, incidents):
                        break
                    await asyncio.sleep(POLL_INTERVAL_S)
            while True:
                status = await _reach(self._link.status())
                self._shows_steps = self._shows_steps or (status is not None and status.step is not None)
                if status is not None and is_due(fault, status):
                    break
                await asyncio.sleep(POLL_INTERVAL_S)
            incidents = await _reach(self._link.incidents())
            last = Injected(fault, status.round, frozenset(each.id for each in incidents or ()))
            self._doing = fault
            try:
                await self._do(fault)
            except Unavailable as error:
                last = None
                self._missed.append(str(error))
                self._say(f"NOT INJECTED: {error}")
            finally:
                self._waiting.remove(fault)

    async def _do(self, fault: ScriptedFault) -> None:
        """Raises Unavailable when there is nobody whom it could happen to."""
        self._say(f"injecting: {fault}")
        if fault.do is Deed.KILL_WATCHDOG:
            if self._watchdog.pid is not None:
                send(self._watchdog.pid, signal.SIGKILL)
            return
        if fault.do in _TO_WORKERS:
            await self._signal_worker(fault, _TO_WORKERS[fault.do])
            return
        node, rank, step = await self._node_of(fault), fault.rank or 0, fault.at.step
        directory = node.run_directory
        match fault.do:
            case Deed.FLIP_BIT:
                bit = 12 if fault.bit is None else fault.bit
                request_bit_flip(directory, BitFlip(rank=rank, step=step, bit=bit))
                await _taken(bit_flip_file(directory, rank), fault)
            case Deed.NAN:
                request_nan(directory, NanOutput(rank=rank, step=step, steps=fault.steps or 1))
                await _taken(nan_file(directory, rank), fault)
            case Deed.KILL_NODE:
                node.kill()
            case Deed.KILL_LAUNCHER:
                node.launcher.send(signal.SIGKILL)
            case Deed.END_LAUNCHER:
                node.launcher.send(signal.SIGTERM)
            case Deed.KILL_AGENT:
                node.agent.send(signal.SIGKILL)
            case Deed.DRAIN:
                self._cluster.announce_drain(node.name, "drained by the fault script")
            case Deed.PARTITION:
                cut = asyncio.create_task(self._cluster.cut_off(node.name, fault.seconds or PARTITION_S))
                self._partitions.add(cut)
                cut.add_done_callback(self._partitions.discard)
            case _ if fault.do in AILMENTS:
                await _taken(request_disturbance(directory, disturbance_of(fault)), fault)
            case _:
                inject(str(directory), _of_simulated(fault))

    async def _signal_worker(self, fault: ScriptedFault, number: signal.Signals) -> None:
        """Send the signal to the process of the rank, which must be one that runs."""
        for _ in range(int(WHOM_S / POLL_INTERVAL_S)):
            rank = await self._rank(fault.rank)
            if rank is not None and rank.pid is not None and is_running(rank.pid):
                send(rank.pid, number)
                return
            await asyncio.sleep(POLL_INTERVAL_S)
        ranks = await _reach(self._link.ranks()) or ()
        known = ", ".join(str(rank.rank) for rank in ranks) or "none"
        raise Unavailable(f"{fault}: there is no process of that rank; the ranks there are: {known}")

    async def _node_of(self, fault: ScriptedFault) -> LocalNode:
        for _ in range(int(WHOM_S / POLL_INTERVAL_S)):
            name = fault.node
            if name is None and (rank := await self._rank(fault.rank)) is not None:
                name = rank.node
            node = self._cluster.up.get(name) if name is not None else None
            if node is not None:
                return node
            await asyncio.sleep(POLL_INTERVAL_S)
        known = ", ".join(sorted(self._cluster.up)) or "none"
        raise Unavailable(f"{fault}: that node is not up; the nodes that are: {known}")

    async def _rank(self, wanted: int | None) -> RankStatus | None:
        ranks = await _reach(self._link.ranks())
        return next((rank for rank in ranks or () if rank.rank == wanted), None)


def _of_simulated(fault: ScriptedFault) -> Fault:
    """What happens to a simulated GPU or its node."""
    gpu = fault.gpu or 0
    match fault.do:
        case Deed.XID:
            return Fault(gpu=gpu, xid=fault.xid, text=f"injected XID {fault.xid}")
        case Deed.GPU_LOST:
            return Fault(gpu=gpu, lost=True, text="injected loss")
        case Deed.HOT:
            return Fault(gpu=gpu, temperature_c=HOT_C if fault.celsius is None else fault.celsius)
        case Deed.CONDITION:
            return Fault(gpu=gpu, condition=fault.kind, text="injected")
        case _:
            assert fault.do is Deed.PREEMPT
            return Fault(gpu=0, taken_away_in_s=fault.seconds or NOTICE_GIVEN_S, text="injected notice")


async def _taken(request: Path, fault: ScriptedFault) -> None:
    """Wait until the rank has taken the request, so that it happened. Raises Unavailable, and takes it back.

    One of several steps may stay, counted down: that it changed says that its first step was taken.
    """
    asked = _content(request)
    for _ in range(int(WHOM_S / POLL_INTERVAL_S)):
        if (now := _content(request)) is None or now != asked:
            return
        await asyncio.sleep(POLL_INTERVAL_S)
    request.unlink(missing_ok=True)
    needs = _NEEDS.get(fault.do, "Run.step")
    raise Unavailable(f"{fault}: the rank did not take it up within {WHOM_S:.0f} s; its script must use {needs}")


def _content(file: Path) -> bytes | None:
    """None when there is no such file."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None


async def _reach(answer: Awaitable[Answer]) -> Answer | None:
    """What the watchdog says, None while it is away."""
    try:
        return await answer
    except Unavailable:
        return None
