"""The operator of a run on given hosts: makes them match the plan, and reports what becomes of them."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from holdfast.api.errors import Unavailable
from holdfast.api.plan import NodeObserved, NodeState, Plan, ToOperator
from holdfast.cli.embedded.childprocess import ChildProcess, exit_text
from holdfast.cli.embedded.planfollower import PlanFollower
from holdfast.cli.hosts.placement import REST_FIRST_S, REST_MOST_S, Host, Start, Stop, decide, shortage
from holdfast.cli.hosts.reach import READY, Reach, Standing
from holdfast.cli.hosts.task import BEAT, BEAT_EVERY_S, HostTask
from holdfast.cli.statedirectory import StateDirectory

LOOK_EVERY_S: Final = 5.0
EARLY_EXIT_S: Final = 10.0  # a launcher that fails within this never did any work
EARLY_EXITS_MAX: Final = 3  # of each host, in a row; then starting more of them helps nobody
SETTLE_WITHIN_S: Final = 40.0  # a little more than Slurm's controller is given to answer
END_WITHIN_S: Final = 10.0  # saying goodbye takes one second, ending the workers a few


@dataclass(slots=True)
class _Known:
    """What is known of a host. `failures`: launchers that ended at once, in a row. `said`: what was told of it."""

    program: ChildProcess | None = None
    standing: Standing = READY
    rests_until: float = 0.0
    failures: int = 0
    said: str = ""
    started_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """How hosts are used. `task` is what each is told, with its name and the newest token in it.

    `program` runs on each; `least` is how many the job cannot do without; `directory` has the logs.
    """

    task: Callable[[str], HostTask]
    program: tuple[str, ...]
    least: int
    directory: StateDirectory
    job: str


@dataclass
class HostCluster(PlanFollower):
    """The operator of given hosts.

    `too_few` is done, with the reason, once the hosts can hold the job no more.
    """

    hosts: tuple[str, ...]
    reach: Reach
    options: HostOptions
    say: Callable[[str], None]
    too_few: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def __post_init__(self) -> None:
        super().__init__(self.options.job)
        self._known = {name: _Known() for name in self.hosts}
        self._over = False
        self._taken_out: set[str] = set()
        self._ordered = asyncio.Event()
        self._watchers: set[asyncio.Task[None]] = set()

    def hear(self, shown: ToOperator) -> None:
        """Take a plan, and what it says of nodes' service."""
        super().hear(shown)
        if isinstance(shown, Plan):
            self._ordered.set()

    async def look(self) -> None:
        """Ask now and then what is said of the hosts, until cancelled."""
        while True:
            for host, standing in (await self.reach.standings()).items():
                self._note(host, standing)
            await asyncio.sleep(LOOK_EVERY_S)

    async def beat(self) -> None:
        """Let hosts hear us, and whoever shares the state directory see that we live, until cancelled."""
        while True:
            for known in self._known.values():
                if known.program is not None:
                    known.program.tell(BEAT)
            with contextlib.suppress(OSError):  # a full disk: hosts that hear us need no file
                self.options.directory.beat_file.write_text(f"{time.monotonic_ns()}\n")
            await asyncio.sleep(BEAT_EVERY_S)

    async def keep_in_service(self) -> None:
        """Take hosts out of service and put them back, until cancelled: apart from `run`, for it may take long."""
        while True:
            await self._ordered.wait()
            self._ordered.clear()
            await self._serve()

    async def settle(self) -> None:
        """What was ordered last and is not done yet. Call it when `keep_in_service` has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_WITHIN_S):
                await self._serve()

    async def drain(self, within_s: float) -> None:
        """Let launchers end on their own, as they do when the job is over. None is started any more."""
        self._over = True
        ends = [known.program.ended for known in self._known.values() if known.program is not None]
        if ends:
            await asyncio.wait(ends, timeout=within_s)

    async def stop(self) -> None:
        """End every host's program."""
        self._over = True
        await asyncio.gather(*(self._end(known.program) for known in self._known.values() if known.program))
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)

    def _note(self, host: str, standing: Standing) -> None:
        known = self._known.get(host)
        if known is None or known.standing == standing:
            return
        known.standing = standing
        if standing.state is not NodeState.READY:
            self.say(f"{host} is {standing.state.value}: {standing.reason}")
        # That of a host without a program is told as well: the watchdog may wait for it.
        self.outbox.put(NodeObserved(host, standing.state, standing.reason))
        self.changed.set()

    def _observed(self) -> list[Host]:
        return [
            Host(name, known.program is not None, known.standing, known.rests_until)
            for name, known in self._known.items()
        ]

    async def _match(self, plan: Plan, now: float) -> float | None:
        """Do what is to be done now; returns when to look again."""
        if self._over:
            return None
        before = any(known.started_at for known in self._known.values())
        decision = decide(self._observed(), plan, now)
        for action in decision.actions:
            if isinstance(action, Start):
                self._start(action.name)
                self._starts(action.name)
            else:
                await self._take_down(action)
        reason = shortage(self._observed(), plan, self.options.least) if plan.members else None
        if reason is not None and not before:
            # Asking for other hosts at once, again and again, would help nobody.
            self.trouble = Unavailable(f"{reason}; `holdfast nodes` says which are kept away from, and why")
            self.changed.set()
        elif reason is not None and not self.too_few.done():
            self.too_few.set_result(reason)
        return decision.next_wakeup

    async def _serve(self) -> None:
        """Take out of service what the plan says, and put back what it says, each once."""
        if self.plan is None:
            return
        for order in self.plan.cordon:
            if order.node in self._known and order.node not in self._taken_out:
                which = f"{order.incident}: " if order.incident else ""
                todo = await self.reach.take_out(order.node, f"{which}{order.reason}")
                self._taken_out.add(order.node)
                self.say(todo or f"{order.node} is out of service: {order.reason}")
        for name in self._taken_out.intersection(self.plan.returned):
            todo = await self.reach.put_back(name)
            self._taken_out.discard(name)
            self.say(todo or f"{name} is back in service")

    def _start(self, name: str) -> None:
        known = self._known[name]
        known.started_at = time.monotonic()
        known.program = ChildProcess(
            self.reach.command(name, self.options.program),
            log=self.options.directory.logs / f"{name}.log",
            directory=self.options.directory.root,
            is_told=True,
        )
        known.program.tell(self.options.task(name).line())
        self.outbox.put(NodeObserved(name, NodeState.READY))
        watcher = asyncio.create_task(self._watch(name, known, known.program))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)

    async def _watch(self, name: str, known: _Known, program: ChildProcess) -> None:
        code = await asyncio.shield(program.ended)
        if known.program is not program or self._over:
            return
        is_early = code != 0 and time.monotonic() - known.started_at < EARLY_EXIT_S
        known.failures = known.failures + 1 if is_early else 0
        words = (program.last_line() or exit_text(code)) if is_early else ""
        if words and words != known.said:
            self.say(f"{name} cannot be used now, and is tried again: {words}")
        known.said = words
        self._down(name, f"its launcher ended with {exit_text(code)}")
        if all(each.failures >= EARLY_EXITS_MAX for each in self._known.values()):
            self.trouble = Unavailable(f"launchers fail as soon as they start: {words}")

    async def _take_down(self, action: Stop) -> None:
        program = self._known[action.name].program
        self.say(f"{action.name} is stopped: {action.reason}")
        self._down(action.name, action.reason)
        if program is not None:
            await self._end(program)

    def _down(self, name: str, reason: str) -> None:
        known = self._known[name]
        known.program = None
        known.rests_until = time.monotonic() + min(REST_MOST_S, REST_FIRST_S * 2**known.failures)
        self.outbox.put(NodeObserved(name, NodeState.GONE, reason))
        self.changed.set()

    async def _end(self, program: ChildProcess) -> None:
        """In good order; what does not end is ended by its signals."""
        program.tell_no_more()
        await asyncio.wait((program.ended,), timeout=END_WITHIN_S)
        await program.stop()
