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
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from holdfast.agent.launch.birth import Ended, Fork, Forked, FromWarmParent, GroupGone, NotForked
from holdfast.agent.launch.connection import Connection
from holdfast.agent.launch.control import ControlServer
from holdfast.agent.launch.effect import Effect, Exit, KillWorker, Report, Start, StartTest, TellWorker
from holdfast.agent.launch.environment import error_file, worker_environment
from holdfast.agent.launch.firstsign import FirstSigns
from holdfast.agent.launch.localset import LocalSet
from holdfast.agent.launch.logfile import WorkerLogs, ending, log_path, tail
from holdfast.agent.launch.memoryfolder import folder_of
from holdfast.agent.launch.memorylimit import MemoryLimit
from holdfast.agent.launch.nursery import Nursery
from holdfast.agent.launch.outcome import Outcome, WorkerFailure
from holdfast.agent.launch.outputtail import OutputTails
from holdfast.agent.launch.ports import ReservedPorts
from holdfast.agent.launch.raised import raised_in
from holdfast.agent.launch.settings import EntrypointKind, LauncherSettings
from holdfast.agent.launch.tee import LogFollower
from holdfast.agent.launch.testing import Testing
from holdfast.agent.launch.testprocess import TestProcess
from holdfast.agent.launch.transfer import Transfer
from holdfast.agent.launch.warm_parent import Preload
from holdfast.agent.memberfile import Member, own_pid_namespace, write_member
from holdfast.api.control import FromWorker, record_file_name
from holdfast.api.errors import Unavailable
from holdfast.api.membership import Departing, Join, RoundWord, SaveWanted, Verified, Warmed, WorkerExited
from holdfast.api.rankrecord import SEQUENCE, STEP_SEQUENCE_OFFSET, UNKNOWN_INT, check_header, unpack_step
from holdfast.api.round import Closed, Shown
from holdfast.api.selftest import TestWanted

log = logging.getLogger(__name__)

_LEAVING_S = 3.0  # saying goodbye takes one second at most, ending the workers two


@dataclass(frozen=True, slots=True)
class _Born:
    """What is remembered of a process: its log, where its part of it begins, and for whom it was started."""

    start: Start
    path: Path
    offset: int


class Launcher:
    """One member's life, from joining to `Outcome`."""

    def __init__(self, settings: LauncherSettings, ports: ReservedPorts) -> None:
        self._settings = settings
        self._ports = ports
        self._boot = uuid.uuid4().hex
        folder = folder_of(
            settings.memory_root, job=settings.job, member=settings.member, run_dir=settings.run_dir
        )
        self._transfer = Transfer(folder, settings.address, settings.environment)
        self._set = LocalSet(
            local_size=settings.local_size,
            leave_timeout_s=settings.leave_timeout_s,
            attach_grace_s=settings.attach_grace_s,
            memory=self._transfer.place,
        )
        self._testing = Testing()
        self._test_process = TestProcess(settings.run_dir, settings.log_dir, settings.member)
        self._asked: dict[int, _Born] = {}  # by ticket, until the process id is known
        self._born: dict[int, _Born] = {}  # by process id
        self._failures: dict[int, WorkerFailure] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._over: asyncio.Future[Outcome] | None = None
        self._departure: signal.Signals | None = None
        self._follower = LogFollower(sys.stdout)
        self._memory_limit = MemoryLimit()
        self._signs = FirstSigns(lambda pid: self._do(self._set.showed_sign(pid)))
        self._logs = WorkerLogs(
            settings.log_dir, member=settings.member, node=settings.node, clock=_seconds_since_1970
        )
        self._control = ControlServer(
            run_dir=settings.run_dir,
            on_attached=self._take_attached,
            on_message=self._take_from_worker,
            on_detached=self._set.detached,
        )
        self._nursery = Nursery(
            preload=_preload(settings), environment=settings.environment, on_message=self._take_from_warm_parent
        )
        self._connection = Connection(
            settings.watchdog,
            job=settings.job,
            heartbeat_interval_s=settings.heartbeat_interval_s,
            join=self._join,
            on_shown=self._take_shown,
        )
        self._tails = OutputTails(settings.log_dir, self._connection.report)

    async def run(self) -> Outcome:
        """Run until the job closes, the watchdog refuses us or a signal ends us; then no worker is left.

        Raises TurnedAway when the watchdog does not take this launcher, Unavailable when the run directory cannot
        be written.
        """
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        self._say_who_uses_the_run_directory()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_for_signal, number)
        try:
            async with AsyncExitStack() as stack:
                await self._control.open()
                stack.push_async_callback(self._control.close)
                await stack.enter_async_context(self._transfer)  # workers write to its memory until they end
                await stack.enter_async_context(running_beside(self._nursery.run(), self._over))
                await stack.enter_async_context(running_beside(self._follower.run(), self._over))
                await stack.enter_async_context(running_beside(self._signs.run(), self._over))
                await stack.enter_async_context(running_beside(self._logs.run(), self._over))
                await stack.enter_async_context(running_beside(self._connection.run(), self._over))
                return await self._until_over()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            if self._timer is not None:
                self._timer.cancel()

    async def _until_over(self) -> Outcome:
        assert self._over is not None
        outcome = await self._over
        born = self._born
        living = [(run, born[run.pid].start.round.world_size) for run in self._logs.living if run.pid in born]
        self._tails.leave(living, _seconds_since_1970())
        if outcome.signal is not None:
            await self._connection.leave(outcome.reason)
        else:
            await self._connection.flush()
        return outcome

    def _say_who_uses_the_run_directory(self) -> None:
        settings = self._settings
        member = Member(settings.job, settings.member, settings.node, self._boot, own_pid_namespace())
        try:
            write_member(settings.run_dir, member)
        except OSError as error:
            raise Unavailable(
                f"the run directory {settings.run_dir} cannot be written: {error.strerror}"
            ) from error

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
            warm=self._nursery.is_warm,
            held_round=self._set.held_round,
            shown=self._set.shown_number,
            nodes=settings.nodes,
            transfer_port=self._transfer.port,
        )

    # What arrives.

    def _take_shown(self, desired: Shown | RoundWord | TestWanted) -> None:
        if isinstance(desired, TestWanted):
            log.info(
                "self-test wanted number=%d level=%s reason=%s", desired.number, desired.level, desired.reason
            )
            self._do(self._testing.want(desired))
            return
        if isinstance(desired, SaveWanted):
            log.info("one more checkpoint wanted round=%d number=%d", desired.round, desired.number)
        if isinstance(desired, SaveWanted | Verified):
            self._do(self._set.pass_on(desired))
            return
        log.info("shown kind=%s number=%d reason=%s", type(desired).__name__, desired.number, desired.reason)
        self._transfer.show(desired)
        self._do(self._set.show(desired, time.monotonic()))
        if isinstance(desired, Closed):
            self._finish(Outcome(succeeded=desired.succeeded, reason=desired.reason, failures=self._failures))
        elif self._departure is not None and not self._set.has_ranks:
            self._leave(self._departure)

    def _take_attached(self, worker: int) -> None:
        self._signs.forget(worker)  # its rank record tells of its steps
        self._do(self._set.attached(worker, time.monotonic()))

    def _take_from_worker(self, worker: int, message: FromWorker) -> None:
        self._do(self._set.heard(worker, message, time.monotonic()))

    def _take_from_warm_parent(self, message: FromWarmParent) -> None:
        now = time.monotonic()
        if isinstance(message, Forked):
            self._take_forked(message, now)
        elif isinstance(message, NotForked):
            self._take_not_forked(message)
        elif isinstance(message, Ended):
            self._take_ended(message, now)
        elif isinstance(message, GroupGone):
            self._do(self._testing.group_gone(message.pid))
        elif message.warm:
            self._connection.report(Warmed())
        else:
            log.warning("workers start cold reason=%s", message.reason)

    def _take_not_forked(self, message: NotForked) -> None:
        if self._testing.has_ticket(message.ticket):
            self._do(self._testing.ended(message.error))
            return
        self._asked.pop(message.ticket, None)
        self._do(self._set.not_started(message.ticket, message.error))

    def _take_forked(self, message: Forked, now: float) -> None:
        if self._testing.has_ticket(message.ticket):
            self._do(self._testing.started(message.pid))
            return
        born = self._asked.pop(message.ticket)
        self._born[message.pid] = born
        start, round_ = born.start, born.start.round
        self._logs.begin(
            message.pid,
            rank=start.rank,
            local_rank=start.local_rank,
            round_=round_.number,
            path=born.path,
            offset=born.offset,
        )
        if self._settings.tee.includes(start.local_rank):
            self._follower.follow(
                message.pid, born.path, rank=start.rank, round_=round_.number, offset=born.offset
            )
        self._signs.watch(message.pid, port=round_.endpoint.port, log=born.path, offset=born.offset)
        self._do(self._set.started(message.ticket, message.pid, now))

    def _take_ended(self, message: Ended, now: float) -> None:
        if self._testing.has_process(message.pid):
            self._do(self._testing.ended(self._test_process.outcome(message)))
            return
        born = self._born.pop(message.pid, None)
        self._follower.finish(message.pid)
        self._signs.forget(message.pid)
        if born is None:
            return
        run = self._logs.end(
            message.pid, f"signal {message.signal}" if message.signal else f"exit code {message.exit_code}"
        )
        written = "" if message.exit_code == 0 else ending(born.path, since=born.offset)
        raised = raised_in(written) if message.exit_code else None
        exit = Exit(
            exit_code=message.exit_code,
            signal=message.signal,
            age_s=max(0.0, now - message.at_ns / 1e9),
            error=raised.text if raised else tail(written),
            completed=last_completed(self._settings.run_dir / record_file_name(born.start.local_rank)),
            raised=raised.exception if raised else "",
            place=raised.place if raised else "",
            own_limit=message.signal == signal.SIGKILL and self._memory_limit.has_killed(),
        )
        effects = self._set.exited(message.pid, exit, now)
        self._do(effects)
        self._tell_failures(effects, message, born)
        if run is not None:
            self._tails.ended(run, born.start.round.world_size)

    # What is done.

    def _do(self, effects: Iterable[Effect]) -> None:
        """Do it all. Whatever changed, a self-test may now begin, or has to be gone before a worker starts."""
        tests = self._testing.settle(free=self._set.leaves_devices_free, round_=self._set.round_with_ranks)
        for effect in (*tests, *effects):
            if isinstance(effect, Start):
                if not self._testing.hold(effect, time.monotonic()):
                    self._start(effect)
            elif isinstance(effect, StartTest):
                self._nursery.fork(self._test_process.request(effect, self._settings.environment))
            elif isinstance(effect, KillWorker):
                self._nursery.kill(effect.pid)
            elif isinstance(effect, TellWorker):
                self._control.tell(effect.pid, effect.message)
            else:
                self._connection.report(effect.message)
        self._follow_ranks()
        self._arm_timer()

    def _follow_ranks(self) -> None:
        """A worker that entered another round may have another rank: its log goes by it from now on."""
        ranks = [(slot.pid, slot.rank) for slot in self._set.slots if slot.pid is not None and slot.entered]
        if self._logs.assign(ranks):
            for worker, rank in ranks:
                self._follower.rename(worker, rank)

    def _start(self, start: Start) -> None:
        settings = self._settings
        path = log_path(settings.log_dir, start.rank, start.round.number)
        offset = path.stat().st_size if path.exists() else 0
        self._asked[start.ticket] = _Born(start, path, offset)
        environment = worker_environment(
            start,
            inherited=settings.environment,
            member=settings.member,
            control=self._control.path,
            run_dir=settings.run_dir,
            max_restarts=settings.max_restarts,
        )
        request = Fork(
            ticket=start.ticket,
            name=f"rank{start.rank}",
            kind=settings.entrypoint.kind,
            argv=settings.entrypoint.argv,
            env=environment,
            cwd=os.getcwd(),
            log=str(path),
        )
        self._nursery.fork(request)

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        times = (self._set.next_wakeup(), self._testing.next_wakeup())
        at = min((each for each in times if each is not None), default=None)
        # asyncio's clock is time.monotonic on every platform this runs on.
        self._timer = None if at is None else asyncio.get_running_loop().call_at(at, self._elapse)

    def _elapse(self) -> None:
        now = time.monotonic()
        self._do([*self._set.elapse(now), *self._testing.elapse(now)])

    def _tell_failures(self, effects: Iterable[Effect], ended: Ended, born: _Born) -> None:
        """Say on this node what was said to the watchdog: which worker failed, and its last words."""
        for effect in effects:
            if not (isinstance(effect, Report) and isinstance(effect.message, WorkerExited)):
                continue
            failed = effect.message
            if failed.exit_code == 0:
                continue  # it is told of because the others may go on; it has not failed
            how = f"signal={failed.signal}" if failed.signal else f"exit_code={failed.exit_code}"
            log.error("a worker failed rank=%d round=%d %s log=%s", failed.rank, failed.round, how, born.path)
            if failed.error and not self._settings.tee.includes(born.start.local_rank):
                sys.stderr.write(failed.error + "\n")
            self._failures.pop(failed.rank, None)  # the newest is the last
            self._failures[failed.rank] = WorkerFailure(
                local_rank=born.start.local_rank,
                pid=ended.pid,
                exit_code=failed.exit_code if failed.exit_code is not None else -(failed.signal or 0),
                error_file=error_file(self._settings.run_dir, born.start),
                error=failed.error,
            )

    # How it ends.

    def _stop_for_signal(self, number: signal.Signals) -> None:
        """SIGTERM may leave time to move the ranks in good order. Any second signal ends it at once."""
        stay_s = self._settings.leave_grace_s - _LEAVING_S
        if number != signal.SIGTERM or self._departure or stay_s <= 0 or not self._set.has_ranks:
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


def _preload(settings: LauncherSettings) -> Preload:
    return Preload.NOTHING if settings.entrypoint.kind is EntrypointKind.PROGRAM else Preload.TORCH


# The last step a worker had completed when it ended, from the rank record it leaves behind.


def last_completed(record: Path) -> tuple[int, int] | None:
    """The (round, step) in `record`, None when Unknown: no record, none completed, or killed while writing."""
    try:
        raw = record.read_bytes()
        if check_header(raw) is not None or SEQUENCE.unpack_from(raw, STEP_SEQUENCE_OFFSET)[0] % 2:
            return None
        zone = unpack_step(raw)
    except (OSError, ValueError):
        return None
    return None if zone.step == UNKNOWN_INT else (zone.round, zone.step)


# Work of the launcher that goes on beside its own, and whose failure is the launcher's.


@asynccontextmanager
async def running_beside(work: Coroutine[None, None, None], over: asyncio.Future[Outcome]) -> AsyncIterator[None]:
    """Run `work` beside the block and end it after it. Should it fail, `over` takes its error."""

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
