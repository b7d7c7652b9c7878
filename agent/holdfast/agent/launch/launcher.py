"""The launcher: shows desired states to the set of local workers, does what that wants, reports what happens.

Everything runs on one event loop and is pushed: the watchdog's frame, the kernel's word that a process ended and
a worker's message each lead to their effects in the same turn of the loop. Nothing is polled.
"""

import asyncio
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import msgspec

from holdfast.agent.launch import firstsign, forking, logs
from holdfast.agent.launch.connection import Connection
from holdfast.agent.launch.control import ControlServer
from holdfast.agent.launch.ending import MEMORY_LOOK_S, MemoryLimit, last_completed, raised_in
from holdfast.agent.launch.endsignals import EndSignals
from holdfast.agent.launch.habits import ScriptHabits
from holdfast.agent.launch.host import ReservedPorts, gloo_environment
from holdfast.agent.launch.localset import Effect, KillWorker, LocalSet, Report, Start, StartTest, TellWorker
from holdfast.agent.launch.memoryfolder import folder_of
from holdfast.agent.launch.processes import TestProcess, error_file, worker_environment
from holdfast.agent.launch.settings import LauncherSettings
from holdfast.agent.launch.spawned import SpawnCall
from holdfast.agent.launch.stacks import StackTaker
from holdfast.agent.launch.testing import Testing
from holdfast.agent.launch.transfer import Transfer
from holdfast.agent.launch.warmparents import WarmParents
from holdfast.agent.memberfile import Member, own_pid_namespace, write_member
from holdfast.api.control import Attached, FromWorker, record_file_name
from holdfast.api.errors import Unavailable
from holdfast.api.membership import (
    Departing,
    Join,
    ProcessesSpawned,
    RoundWord,
    SaveWanted,
    Warmed,
    WorkerExited,
)
from holdfast.api.profile import ProfileTold, ProfileWanted
from holdfast.api.round import Closed, Shown
from holdfast.api.selftest import TestWanted
from holdfast.api.stacks import FlightTold, StacksWanted, StackTold

log = logging.getLogger(__name__)

_LEAVE_TIMEOUT_S = 1.0  # leaving a round takes tens of milliseconds; a stuck worker is replaced instead
_ATTACH_GRACE_S = 0.3  # a script using holdfast.trainer attaches within this, once forked warm
_LEAVING_S = 3.0  # saying goodbye takes one second at most, ending the workers two


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """The last failure of one rank. `exit_code` is negative for a signal, as in `subprocess`.

    `error` is the tail of its output that a human wants to read.
    """

    local_rank: int
    pid: int
    exit_code: int
    error_file: Path
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`signal` is set when a signal ended the launcher; `failures` are by global rank."""

    succeeded: bool
    reason: str
    signal: int | None = None
    failures: Mapping[int, WorkerFailure] = field(default_factory=dict)

    @property
    def exit_status(self) -> int:
        """What the launcher's process ends with; a signal shows as a shell shows it."""
        if self.signal is not None:
            return 128 + self.signal
        return 0 if self.succeeded else 1


@dataclass(frozen=True, slots=True)
class _Started:
    """What is remembered of a process: its log, where its part of it begins, and for whom it was started."""

    start: Start
    path: Path
    offset: int


class Launcher:
    """One member's life, from joining to `Outcome`."""

    def __init__(self, settings: LauncherSettings, ports: ReservedPorts) -> None:
        environment = {**gloo_environment(settings.address), **settings.environment}
        self._settings = settings = replace(settings, environment=environment)
        self._ports = ports
        self._boot = uuid.uuid4().hex
        folder = folder_of(
            settings.memory_root, job=settings.job, member=settings.member, run_dir=settings.run_dir
        )
        self._transfer = Transfer(folder, settings.address, settings.environment)
        self._set = LocalSet(
            local_size=settings.local_size,
            leave_timeout_s=_LEAVE_TIMEOUT_S,
            attach_grace_s=_ATTACH_GRACE_S,
            memory=self._transfer.place,
        )
        self._testing = Testing()
        self._test_process = TestProcess(settings.run_dir, settings.log_dir, settings.member, settings.address)
        self._asked: dict[int, _Started] = {}  # by ticket, until the process id is known
        self._workers: dict[int, _Started] = {}  # by process id
        self._failures: dict[int, WorkerFailure] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._over: asyncio.Future[Outcome] | None = None
        self._departure: signal.Signals | None = None
        self._told_to_end: signal.Signals | None = None  # what tells this process may reach its workers as well
        self._follower = logs.LogFollower(sys.stdout)
        self._memory_limit = MemoryLimit()
        self._asked_to_end = EndSignals(settings.run_dir, clock=_seconds_since_1970)
        self._signs = firstsign.FirstSigns(self._take_sign)
        self._logs = logs.WorkerLogs(
            settings.log_dir, member=settings.member, node=settings.node, clock=_seconds_since_1970
        )
        self._control = ControlServer(
            run_dir=settings.run_dir, on_message=self._take_from_worker, on_detached=self._set.detached
        )
        self._parents = WarmParents(
            entrypoint=settings.entrypoint,
            environment=settings.environment,
            run_dir=settings.run_dir,
            on_message=self._take_from_warm_parent,
            on_left=lambda worked: self._habits.leave(worked),
        )
        self._habits = ScriptHabits(
            settings, season=self._parents.season, on_spawned=self._take_spawned, clock=_seconds_since_1970
        )
        self._connection = Connection(
            settings.watchdog,
            job=settings.job,
            heartbeat_interval_s=settings.heartbeat_interval_s,
            join=self._join,
            on_shown=self._take_shown,
        )
        self._tails = logs.OutputTails(settings.log_dir, self._connection.report)
        self._stacks = StackTaker(settings.run_dir, dump=self._parents.dump, ask=self._control.tell)
        self._taking: asyncio.Task[None] | None = None  # where the workers stand
        self._behind: Shown | None = None  # what was shown meanwhile, and is done afterwards

    async def run(self) -> Outcome:
        """Run until the job closes, the watchdog refuses us or a signal ends us; then no worker is left.

        Raises TurnedAway when the watchdog does not take this launcher, Unavailable when the run directory cannot
        be written.
        """
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        settings = self._settings
        member = Member(settings.job, settings.member, settings.node, self._boot, own_pid_namespace())
        try:
            write_member(settings.run_dir, member)
        except OSError as error:
            what = f"the run directory {settings.run_dir} cannot be written"
            raise Unavailable(f"{what}: {error.strerror}") from error
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_for_signal, number)
        try:
            async with AsyncExitStack() as stack:
                await self._control.open()
                stack.push_async_callback(self._control.close)
                await stack.enter_async_context(self._transfer)  # workers write to its memory until they end
                self._parents.season(self._habits.wanted)
                for work in (
                    self._parents.run(),
                    _every(logs.TEE_INTERVAL_S, self._follower.copy),
                    _every(firstsign.LOOK_INTERVAL_S, self._signs.look),
                    _every(firstsign.LOOK_INTERVAL_S, self._habits.look),
                    _every(logs.TRIM_INTERVAL_S, self._logs.trim),
                    _every(MEMORY_LOOK_S, self._memory_limit.look),
                    self._connection.run(),
                ):
                    await stack.enter_async_context(_running_beside(work, self._over))
                outcome = await self._over
                living = [
                    (run, self._workers[run.pid].start.round.world_size)
                    for run in self._logs.living
                    if run.pid in self._workers
                ]
                self._tails.leave(living, _seconds_since_1970())
                if outcome.signal is not None:
                    await self._connection.leave(outcome.reason)
                else:
                    await self._connection.flush()
                return outcome
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            if self._timer is not None:
                self._timer.cancel()

    def _join(self) -> Join:
        settings = self._settings
        return Join(
            job=settings.job,
            member=settings.member,
            node=settings.node,
            boot=self._boot,
            address=settings.address,
            local_size=settings.local_size,
            ports=self._ports.numbers,
            warm=self._parents.is_warm,
            held_round=self._set.held_round,
            shown=self._set.desired.number if self._set.desired else 0,
            nodes=settings.nodes,
            transfer_port=self._transfer.port,
            tells_stacks=True,
            takes_profiles=True,
            takes_ledgers=True,
        )

    # What arrives.

    def _take_shown(self, desired: Shown | RoundWord | TestWanted | StacksWanted | ProfileWanted) -> None:
        if isinstance(desired, ProfileWanted):
            self._profile(desired)
            return
        if isinstance(desired, StacksWanted):
            if self._taking is None:
                self._taking = asyncio.create_task(self._take_stacks(desired))
            return
        if isinstance(desired, TestWanted):
            log.info(
                "self-test wanted number=%d level=%s reason=%s", desired.number, desired.level, desired.reason
            )
            self._do(self._testing.want(desired))
            return
        if isinstance(desired, SaveWanted):
            log.info("one more checkpoint wanted round=%d number=%d", desired.round, desired.number)
        if isinstance(desired, RoundWord):
            self._do(self._set.pass_on(desired))
            return
        if self._taking is not None:
            self._behind = desired
            return
        log.info("shown kind=%s number=%d reason=%s", type(desired).__name__, desired.number, desired.reason)
        self._transfer.show(desired)
        self._do(self._set.show(desired, time.monotonic()))
        if isinstance(desired, Closed):
            self._finish(Outcome(succeeded=desired.succeeded, reason=desired.reason, failures=self._failures))
        elif self._departure is not None and self._set.seat is None:
            self._leave(self._departure)

    def _profile(self, wanted: ProfileWanted) -> None:
        """Hand it to the workers it means; one that cannot be asked says so at once."""
        for slot in self._set.slots:
            if slot.rank not in wanted.ranks or slot.round != wanted.round:
                continue
            if slot.pid is None or not self._control.tell(slot.pid, wanted):
                problem = "its script does not use holdfast.trainer, or its process is gone"
                self._connection.report(ProfileTold(wanted.round, wanted.number, slot.rank, problem=problem))

    async def _take_stacks(self, wanted: StacksWanted) -> None:
        """Say where the workers of the round stand; what is shown meanwhile waits, for it may end them."""
        try:
            workers = {
                slot.pid: slot.rank
                for slot in self._set.slots
                if slot.pid is not None and slot.round == wanted.round and slot.holds_process
            }
            for stack in await self._stacks.take(workers, wanted.number):
                self._connection.report(StackTold(wanted.round, wanted.number, stack))
        except OSError as error:
            log.warning("the stacks of the workers could not be taken round=%d error=%s", wanted.round, error)
        finally:
            self._taking = None
            behind, self._behind = self._behind, None
            if behind is not None and self._over is not None and not self._over.done():
                self._take_shown(behind)

    def _take_from_worker(self, worker: int, message: FromWorker) -> None:
        if isinstance(message, FlightTold):
            self._stacks.told(worker, message)
        elif isinstance(message, ProfileTold):
            slot = self._set.slot_of(worker)
            rank = message.rank if slot is None else slot.rank
            self._connection.report(msgspec.structs.replace(message, rank=rank))
        elif isinstance(message, Attached):
            self._signs.forget(worker)  # its rank record tells of its steps
            self._habits.attached(worker)
            self._do(self._set.attached(worker, time.monotonic()))
        else:
            self._do(self._set.heard(worker, message, time.monotonic()))

    def _take_from_warm_parent(self, message: forking.FromWarmParent) -> None:
        match message:
            case forking.Ready(warm=True):
                self._connection.report(Warmed())
            case forking.Ready():
                log.warning("workers start cold reason=%s", message.reason)
            case forking.Forked() if self._testing.has_ticket(message.ticket):
                self._do(self._testing.started(message.pid))
            case forking.Forked():
                self._take_started(message)
            case forking.NotForked() if self._testing.has_ticket(message.ticket):
                self._do(self._testing.ended(message.error))
            case forking.NotForked():
                self._asked.pop(message.ticket, None)
                self._do(self._set.not_started(message.ticket, message.error))
            case forking.Ended() if self._testing.has_process(message.pid):
                self._do(self._testing.ended(self._test_process.outcome(message)))
            case forking.Ended():
                self._take_ended(message)
            case forking.GroupGone():
                self._do(self._testing.group_gone(message.pid))

    def _take_started(self, message: forking.Forked) -> None:
        started = self._workers[message.pid] = self._asked.pop(message.ticket)
        start, path, offset = started.start, started.path, started.offset
        pid, rank, round_ = message.pid, start.rank, start.round.number
        self._logs.begin(pid, rank=rank, local_rank=start.local_rank, round_=round_, path=path, offset=offset)
        if self._settings.tee.includes(start.local_rank):
            self._follower.follow(pid, path, rank=rank, round_=round_, offset=offset)
        self._signs.watch(pid, port=start.round.endpoint.port, log=path, offset=offset)
        self._habits.watch(pid, start.local_rank)
        self._do(self._set.started(message.ticket, pid, time.monotonic()))

    def _take_sign(self, pid: int) -> None:
        self._habits.trains(pid)
        self._do(self._set.showed_sign(pid))

    def _take_spawned(self, pid: int, call: SpawnCall) -> None:
        slot = self._set.slot_of(pid)
        if slot is None:
            return
        log.warning("the script starts processes of its own count=%d at=%s", call.processes, call.place)
        self._connection.report(ProcessesSpawned(slot.round, slot.rank, call.processes, call.place))

    def _take_ended(self, message: forking.Ended) -> None:
        """Tell the watchdog, and this node's log, how the worker ended and what it left that explains it."""
        self._control.drain(message.pid)  # what it said last counts, and is there
        asked_by = self._asked_to_end.take(message.pid)
        worker = self._workers.pop(message.pid, None)
        self._follower.finish(message.pid)
        self._signs.forget(message.pid)
        self._habits.ended(message.pid)
        self._stacks.forget(message.pid)
        if worker is None:
            return
        now, start = time.monotonic(), worker.start
        how = f"signal {message.signal}" if message.signal else f"exit code {message.exit_code}"
        run = self._logs.end(message.pid, how)
        exit = self._exit_of(message, worker, now, asked_by)
        completed = last_completed(self._settings.run_dir / record_file_name(start.local_rank))
        effects = self._set.exited(message.pid, exit, now, completed=completed)
        self._do(effects)
        for effect in effects:
            # The end of training is told of because the others may go on; it is no failure.
            if isinstance(effect, Report) and isinstance(effect.message, WorkerExited) and not exit.is_end:
                self._note_failure(effect.message, message.pid, worker)
        if run is not None:
            self._tails.ended(run, start.round.world_size)

    def _exit_of(self, ended: forking.Ended, worker: _Started, now: float, asked_by: int | None) -> WorkerExited:
        slot = self._set.slot_of(ended.pid)
        if asked_by is None and not (slot and slot.finished):
            asked_by = self._told_to_end
        exit = WorkerExited(
            worker.start.round.number,
            worker.start.rank,
            max(0.0, now - ended.at_ns / 1e9),
            ended.exit_code,
            ended.signal,
            left=slot is not None and slot.inside,
            asked_by=asked_by,
            own_limit=ended.signal == signal.SIGKILL and self._memory_limit.has_killed(),
        )
        if exit.is_end:
            return exit
        written = logs.ending(worker.path, since=worker.offset)
        raised = raised_in(written) if exit.exit_code else None
        if raised is None:
            return msgspec.structs.replace(exit, error=logs.tail(written))
        told = {"raised": raised.exception, "place": raised.place, "trace": raised.trace}
        return msgspec.structs.replace(exit, error=raised.text, **told)

    def _note_failure(self, failed: WorkerExited, pid: int, worker: _Started) -> None:
        how = f"signal={failed.signal}" if failed.signal else f"exit_code={failed.exit_code}"
        how += f" asked_by={failed.asked_by}" if failed.asked_by is not None else ""
        log.error("a worker failed rank=%d round=%d %s log=%s", failed.rank, failed.round, how, worker.path)
        if failed.error and not self._settings.tee.includes(worker.start.local_rank):
            sys.stderr.write(failed.error + "\n")
        self._failures.pop(failed.rank, None)  # the newest is the last
        self._failures[failed.rank] = WorkerFailure(
            local_rank=worker.start.local_rank,
            pid=pid,
            exit_code=failed.exit_code if failed.exit_code is not None else -(failed.signal or 0),
            error_file=error_file(self._settings.run_dir, worker.start),
            error=failed.error,
        )

    # What is done.

    def _do(self, effects: Iterable[Effect]) -> None:
        """Do it all. Whatever changed, a self-test may now begin, or has to be gone before a worker starts."""
        seat = self._set.seat
        tests = self._testing.settle(free=self._set.leaves_devices_free, round_=seat.number if seat else None)
        for effect in (*tests, *effects):
            if isinstance(effect, Start):
                if not self._testing.hold(effect, time.monotonic()):
                    self._start(effect)
            elif isinstance(effect, StartTest):
                self._parents.fork_plain(self._test_process.request(effect, self._settings.environment))
            elif isinstance(effect, KillWorker):
                self._parents.kill(effect.pid)
            elif isinstance(effect, TellWorker):
                self._control.tell(effect.pid, effect.message)
            else:
                self._connection.report(effect.message)
        # A worker that entered another round may have another rank: its log goes by it from now on.
        ranks = [(slot.pid, slot.rank) for slot in self._set.slots if slot.pid is not None and slot.entered]
        if self._logs.assign(ranks):
            for worker, rank in ranks:
                self._follower.rename(worker, rank)
        if self._timer is not None:
            self._timer.cancel()
        times = (self._set.next_wakeup(), self._testing.next_wakeup())
        at = min((each for each in times if each is not None), default=None)
        # asyncio's clock is time.monotonic on every platform this runs on.
        self._timer = None if at is None else asyncio.get_running_loop().call_at(at, self._elapse)

    def _elapse(self) -> None:
        now = time.monotonic()
        self._do([*self._set.elapse(now), *self._testing.elapse(now)])

    def _start(self, start: Start) -> None:
        settings = self._settings
        path = logs.log_path(settings.log_dir, start.rank, start.round.number)
        offset = path.stat().st_size if path.exists() else 0
        self._asked[start.ticket] = _Started(start, path, offset)
        request = forking.Fork(
            ticket=start.ticket,
            name=f"rank{start.rank}",
            kind=settings.entrypoint.kind,
            argv=settings.entrypoint.argv,
            env=worker_environment(
                start,
                inherited=settings.environment,
                member=settings.member,
                control=self._control.path,
                run_dir=settings.run_dir,
                max_restarts=settings.max_restarts,
            ),
            cwd=os.getcwd(),
            log=str(path),
            learns=self._habits.learns_from(start.local_rank),
        )
        self._parents.fork(request)

    # How it ends.

    def _stop_for_signal(self, number: signal.Signals) -> None:
        """SIGTERM may leave time to move the ranks in good order. Any second signal ends it at once."""
        self._told_to_end = number
        stay_s = self._settings.leave_grace_s - _LEAVING_S
        if number != signal.SIGTERM or self._departure or stay_s <= 0 or self._set.seat is None:
            self._leave(number)
            return
        self._departure = number
        log.info("told to end, staying until the ranks are moved within_s=%.1f", stay_s)
        self._connection.report(Departing(f"told to end by {number.name}", stay_s))
        asyncio.get_running_loop().call_later(stay_s, self._leave, number)

    def _leave(self, number: signal.Signals) -> None:
        self._finish(Outcome(succeeded=False, reason=f"stopped by {number.name}", signal=number))

    def _finish(self, outcome: Outcome) -> None:
        assert self._over is not None
        if not self._over.done():
            self._over.set_result(outcome)


def _seconds_since_1970() -> float:
    return datetime.now(UTC).timestamp()


async def _every(interval_s: float, act: Callable[[], None]) -> NoReturn:
    while True:
        await asyncio.sleep(interval_s)
        act()


@asynccontextmanager
async def _running_beside(work: Coroutine[None, None, None], over: asyncio.Future[Outcome]) -> AsyncIterator[None]:
    """Run `work` beside the block, end it after it. Its failure is the launcher's: `over` takes its error."""

    def pass_on(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not over.done():
            over.set_exception(error)

    task = asyncio.create_task(work)
    task.add_done_callback(pass_on)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
