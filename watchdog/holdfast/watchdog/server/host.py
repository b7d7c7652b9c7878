"""The event loop's side of one job: hands it samples and events, carries out its effects, keeps its timer."""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec
from aiohttp import WSCloseCode

from holdfast.api.bulletin import GpuFigures
from holdfast.api.errors import Fenced, HoldfastError
from holdfast.api.event import Event, JobSubmitted, NodeChanged, PodChanged, StacksTaken
from holdfast.api.finding import Evidence
from holdfast.api.ledger import LedgerReport
from holdfast.api.membership import SaveWanted
from holdfast.api.plan import JobReport, PodObserved, PodState
from holdfast.api.round import shown_to
from holdfast.api.stacks import RankStack
from holdfast.api.status import LastSeen, NodeStatus
from holdfast.api.telemetry import NodeReport, Pace
from holdfast.watchdog.brain import costs
from holdfast.watchdog.brain.history import vouch
from holdfast.watchdog.brain.members import is_news
from holdfast.watchdog.brain.selftests import wanted_of
from holdfast.watchdog.brain.status import report_of, status_of, tests_of_nodes
from holdfast.watchdog.brain.step import (
    Answered,
    Dismiss,
    Effect,
    Examine,
    Notify,
    Publish,
    Save,
    Show,
    TakeProfile,
    TakeStacks,
    Vouch,
)
from holdfast.watchdog.detectors.detector import Heard, Reported, Sample
from holdfast.watchdog.job import Job
from holdfast.watchdog.journal import lastseen
from holdfast.watchdog.metrics.counts import Tally
from holdfast.watchdog.nodeevidence import KernelLines, node_evidence, noted_evidence
from holdfast.watchdog.server.clock import WatchdogClock
from holdfast.watchdog.server.connection import AgentConnection, Connection, Farewell, LauncherConnection, Slot
from holdfast.watchdog.server.interventions import Interventions
from holdfast.watchdog.server.profilecalls import ProfileCalls
from holdfast.watchdog.server.shelves import Shelves
from holdfast.watchdog.server.stackcalls import StackCalls
from holdfast.watchdog.settings import ClusterPolicy
from holdfast.watchdog.standstill import evidence_of, stood

logger = logging.getLogger(__name__)

# How far the stall threshold moves before agents are told, and how often it is looked at.
PACE_CHANGE = 0.1
PACE_EVERY_S = 1.0
# How often operators are told of what moves all the time (steps); whatever is decided is told at once.
REPORT_EVERY_S = 5.0


class JobHost:
    """One job and everybody connected for it.

    `shelves` hold what is kept of the workers of all jobs. `fenced` is called when another watchdog has taken
    over, `decided` with what was decided, once it is carried out.
    """

    def __init__(
        self,
        job: Job,
        *,
        clock: WatchdogClock,
        tally: Tally,
        shelves: Shelves,
        fenced: Callable[[str], None],
        decided: Callable[["JobHost", tuple[Effect, ...]], None] = lambda host, effects: None,
    ) -> None:
        self.job = job
        self.clock = clock
        self.tally = tally
        self.outputs, self.scalars = shelves.outputs, shelves.scalars
        self.gpu_figures: tuple[float, GpuFigures] | None = None  # as of when
        self.launchers: dict[str, LauncherConnection] = {}
        self.agents: dict[str, AgentConnection] = {}
        self.operators: set[Connection] = set()
        self.stacks = StackCalls()
        self.profiles = ProfileCalls()
        self.kernel = KernelLines()
        self.pods = PodsSeen()
        self.interventions = Interventions(job, self.demand)
        self.taken: dict[str, NodeReport] = {}  # by node: the newest report
        self.taken_at: dict[str, float] = {}
        self.news = 0  # how often anything was decided or reported
        self.closing = False  # peers that go now are sent away: no fault of theirs
        self._over = False
        self._fenced = fenced
        self._decided = decided
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._unkept: list[Effect] = []
        self._keeper: asyncio.Handle | None = None
        self._pace = Pace(interval_s=1.0)
        self._pace_at = 0.0
        self._report_at = 0.0
        self._told_trouble: str | None = None
        self._kept_end: float | None = None

    @property
    def is_submitted(self) -> bool:
        """Whether its policy is of a TrainingJob; one that launchers brought, or nobody, has no uid."""
        policy = self.job.state.policy
        return policy is not None and bool(policy.uid)

    def start(self, cluster: ClusterPolicy) -> None:
        """Resume the job after a restart of the watchdog, as the cluster says now. Raises as `Job.resume`."""
        policy = self.job.state.policy
        with self._only_this_job():
            self._carry_out(self.job.resume(self.clock.now()))
            if policy is not None and (ruled := cluster.applied_to(policy)) != policy and not self.job.stopped:
                self._carry_out(self.job.demand(JobSubmitted(ruled), self.clock.now()))

    def stop(self) -> None:
        """No more timers, and a snapshot for the next start."""
        self._cancel_timers()
        self._guarded(lambda now: self._unkept.extend(self.job.write_progress(now)))
        self._keep()
        self._guarded(self.job.save)
        if self.taken:  # else nothing was heard that an earlier watchdog had not kept
            self._guarded(self._keep_last)

    def dismiss(self, farewell: Farewell) -> None:
        """End every connection and change nothing any more; nothing is kept."""
        self._over = True
        self._cancel_timers()
        self.end_connections(farewell)

    def end_connections(self, farewell: Farewell) -> None:
        """Send everybody away."""
        self.closing = True
        for connection in (*self.launchers.values(), *self.agents.values(), *self.operators):
            connection.outbox.finish(farewell)

    def _cancel_timers(self) -> None:
        self.closing = True
        for handle in (self._timer, self._keeper):
            if handle is not None:
                handle.cancel()

    def dismiss_launchers(self, reason: str) -> None:
        """Have those who are there join anew: until now nobody could say whether they are who they say."""
        for launcher in self.launchers.values():
            launcher.outbox.finish(Farewell(WSCloseCode.TRY_AGAIN_LATER, f"{reason}: join again"))

    def observe(self, sample: Sample) -> None:
        """Show the job a sample."""
        self._guarded(lambda now: self._carry_out(self.job.observe(sample, now)))

    def hear(self, sample: Heard | Reported) -> None:
        """Show the job that somebody lives, and what it is doing: nearly everything that is ever said.

        As long as it proves nothing, nothing is to be done about it, and no wakeup comes sooner.
        """
        if self._over:
            return
        now, offset = self.clock.now(), self.job.offset
        try:
            effects = self.job.observe(sample, now)
            if effects or self.job.offset != offset:
                self._carry_out(effects)
            else:
                self._tell_operators(decided=False, now=now)
        except Fenced as error:
            self._give_up(error)
        except Exception as error:
            self.job.stop(error)

    def record(self, event: Event) -> None:
        """Tell the job a fact."""
        self._guarded(lambda now: self._carry_out(self.job.record(event, now)))

    def see(self, event: NodeChanged | PodChanged) -> None:
        """Tell the job what the operator sees; what says nothing new is not journaled."""
        if self.job.behind or is_news(self.job.state, event):
            self.record(event)

    def reached(self, number: int, by: str) -> None:
        """Tell the job which number somebody outside the store knows of."""
        was_stopped = self.job.stopped
        self.job.reached(number, by)
        if self.job.stopped != was_stopped:
            self._guarded(lambda _: self._carry_out(()))

    def demand(self, event: Event) -> None:
        """Tell the job what somebody waits for. Raises Unavailable, Damaged, Fenced."""
        try:
            with self._only_this_job():
                self._carry_out(self.job.demand(event, self.clock.now()))
        except Fenced as error:
            self._give_up(error)
            raise

    def take_report(self, report: NodeReport) -> None:
        """A node's report that was not seen before."""
        now = self.clock.now()
        self.news += 1
        self.taken[report.node] = report
        self.taken_at[report.node] = now
        self.kernel.take(report, now)
        if report.events:
            self.observe(Reported(report))
        else:
            self.hear(Reported(report))
        if now >= self._pace_at:
            self._pace_at = now + PACE_EVERY_S
            self._set_pace(now)

    def ledger(self) -> LedgerReport:
        """Where every GPU-second went until now; of a job that has ended, until its end."""
        ended_at = self.job.state.ended_at
        return costs.report_of(self.job.shown, self.clock.now() if ended_at is None else ended_at)

    def last_seen(self) -> LastSeen:
        """What is known of the job, or was last known once it has ended. Raises Unavailable, Damaged."""
        now, state = self.clock.now(), self.job.shown
        progress = self.job.progress
        avoided = {order.node: order.reason for order in state.avoided}
        tested = tests_of_nodes(state)
        nodes = tuple(
            NodeStatus(
                node,
                now - self.taken_at[node],
                report.gpus,
                report.conditions,
                report.unreadable,
                avoided.get(node, ""),
                tested=tested.get(node, ""),
            )
            for node, report in sorted(self.taken.items())
        )
        ranks = progress.last_ranks(now) if progress else ()
        seen = LastSeen(now, status_of(state, progress, now), ranks, nodes)
        if state.ended_at is None:
            return seen
        if all(each.heard_age_s is None for each in seen.ranks) and (kept := self.job.kept_last()) is not None:
            return lastseen.aged(kept, now)  # it ended under another watchdog
        return lastseen.aged(seen, now)

    def show_desired(self, launcher: LauncherConnection) -> None:
        """Show a launcher what is desired now, what is verified, and what checkpoint or test is waited for."""
        state = self.job.state
        if state.desired is not None:
            launcher.show(Slot.DESIRED, shown_to(state.desired, launcher.member))
        if state.saving is not None and state.saving.saved is None:
            launcher.show(Slot.SAVE, SaveWanted(state.saving.round, state.saving.number))
        if (trial := state.trials.get(launcher.member)) is not None:
            launcher.show(Slot.TEST, wanted_of(state, trial))
        if (vouched := vouch(state)) is not None and vouched.member == launcher.member:
            launcher.show(Slot.VERIFIED, vouched.verified)

    def show_operator(self, connection: Connection) -> None:
        """Show an operator the plan there is, and how the job is."""
        if self.job.state.plan is not None:
            connection.show(Slot.PLAN, self.job.state.plan)
        connection.show(Slot.REPORT, self._report(self.clock.now()))

    def show_pace(self, connection: Connection) -> None:
        """Show an agent how often to report."""
        self._set_pace(self.clock.now())
        connection.show(Slot.PACE, self._pace)

    def _carry_out(self, effects: tuple[Effect, ...]) -> None:
        """Launchers first: they heal. What is kept for readers and restarts comes last."""
        for effect in effects:
            match effect:
                case Show(desired=desired):
                    for launcher in self.launchers.values():
                        # Its own part: some hundred bytes, where a whole round of 12,500 members takes 0.7 MB.
                        launcher.show(Slot.DESIRED, shown_to(desired, launcher.member))
                case Publish(plan=plan):
                    _broadcast(self.operators, Slot.PLAN, plan)
                case Save(wanted=wanted):
                    _broadcast(self.launchers.values(), Slot.SAVE, wanted)
                case Vouch(member=member, verified=verified):
                    self._tell(member, Slot.VERIFIED, verified)
                case Dismiss(members=members, reason=reason):
                    # Whatever they say on these connections counts no more; on a new one they are members again.
                    lost = Farewell(WSCloseCode.TRY_AGAIN_LATER, f"{reason}: counted as lost; join again")
                    for member in members:
                        if (dismissed := self.launchers.pop(member, None)) is not None:
                            dismissed.outbox.finish(lost)
                case TakeStacks():
                    self._take_stacks(effect)
                case TakeProfile(round=round_, ranks=ranks, steps=steps):
                    self.profiles.take(self.launchers, round_, ranks, steps)
                case Examine(member=member, wanted=asked):
                    self._tell(member, Slot.TEST, asked)
                case Answered(outcome=outcome):
                    self.interventions.answered(outcome)
                case Notify(incident=incident, text=text):
                    logger.warning("a human is needed job=%s incident=%s text=%s", self.job.name, incident, text)
                case _:
                    pass  # incidents are kept below, all at once
        now = self.clock.now()
        self.news += 1
        self._tell_operators(decided=bool(effects), now=now)
        self._arm(now)
        self._unkept.extend(effects)
        if self._keeper is None and (effects or self.job.snapshot_due):
            # Behind the senders, which the frames put above have woken: the disk delays no launcher.
            self._keeper = asyncio.get_running_loop().call_soon(self._keep)
        if effects:
            self._decided(self, effects)

    def _take_stacks(self, wanted: TakeStacks) -> None:
        """What comes of it is evidence; the recovery goes on meanwhile, behind it on each connection."""
        of_suspect = self._of_node(wanted)

        def note(answer: "asyncio.Future[tuple[RankStack, ...]]") -> None:
            if answer.cancelled():
                return
            told = answer.result()
            evidence = (*evidence_of(told, wanted.round.world_size, self.clock.now()), *of_suspect)
            if evidence:
                self.record(StacksTaken(wanted.incident, evidence, *stood(told, wanted.rank)))

        self.stacks.ask(self.launchers, wanted.round, wanted.member, anew=True).add_done_callback(note)

    def _of_node(self, wanted: TakeStacks) -> tuple[Evidence, ...]:
        """What is known of the suspect's node before anything of the round is ended."""
        share = None if wanted.member is None else wanted.round.share_of(wanted.member)
        if share is None:
            return ()
        now, node = self.clock.now(), share.node
        others = noted_evidence(self.job.noted.get(node), now)
        if (report := self.taken.get(node)) is None:
            return others
        return (*node_evidence(report, self.kernel.of(node, now), heard_at=self.taken_at[node]), *others)

    def _tell(self, member: str, slot: Slot, message: object) -> None:
        if (launcher := self.launchers.get(member)) is not None:
            launcher.show(slot, message)

    def _tell_operators(self, *, decided: bool, now: float) -> None:
        due = decided or now >= self._report_at or self.job.trouble != self._told_trouble
        if not due or not self.operators:
            return
        self._report_at, self._told_trouble = now + REPORT_EVERY_S, self.job.trouble
        _broadcast(self.operators, Slot.REPORT, self._report(now))

    def _report(self, now: float) -> JobReport:
        return report_of(self.job.shown, self.job.progress, self.job.trouble, now)

    def _keep(self) -> None:
        effects, self._unkept, self._keeper = self._unkept, [], None
        self._guarded(lambda now: self.job.keep(effects, now))
        ended_at = self.job.state.ended_at
        if ended_at is not None and ended_at != self._kept_end:
            self._kept_end = ended_at
            self._guarded(self._keep_last)

    def _keep_last(self, now: float) -> None:
        """What was heard of the job: it is asked for when nobody is there any more who could say it."""
        if self.job.state.policy is not None and self.taken:
            self.job.keep_last(lastseen.completed(self.last_seen()), now)

    def _arm(self, now: float) -> None:
        """Wake no later than the job asks. A timer that is too early stays: it wakes, and arms the next one."""
        wakeup = self.job.next_wakeup(now)
        if wakeup is None or wakeup >= self._timer_at or self.closing:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wakeup
        self._timer = asyncio.get_running_loop().call_later(max(0.0, wakeup - now), self._wake)

    def _wake(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._guarded(lambda now: self._carry_out(self.job.elapse(now)))

    def _guarded(self, act: Callable[[float], None]) -> None:
        if self._over:
            return
        try:
            with self._only_this_job():
                act(self.clock.now())
        except Fenced as error:
            self._give_up(error)

    @contextmanager
    def _only_this_job(self) -> Iterator[None]:
        """What cannot be carried out (a number that nothing takes, a mistake of ours) stops this job, no other."""
        try:
            yield
        except HoldfastError:
            raise
        except Exception as error:
            self.job.stop(error)

    def _give_up(self, error: Fenced) -> None:
        """Another watchdog decides now: change nothing any more."""
        self.closing = self._over = True
        self._fenced(str(error))

    def _set_pace(self, now: float) -> None:
        policy = self.job.state.policy
        if policy is None or self.job.senses is None:
            return
        pace = Pace(policy.heartbeat_interval_s, self.job.senses.stalled_after_s(now))
        new, old = pace.stalled_after_s, self._pace.stalled_after_s
        moved = new is not old if new is None or old is None else abs(new - old) > PACE_CHANGE * old
        if moved or pace.interval_s != self._pace.interval_s:
            self._pace = pace
            _broadcast(self.agents.values(), Slot.PACE, pace)


def _broadcast(connections: Iterable[Connection], slot: Slot, message: object) -> None:
    frame = msgspec.msgpack.encode(message)
    for connection in connections:
        connection.outbox.put(slot, frame)


class PodsSeen:
    """Where the operator sees the pods of one job. Kept in memory: each operator that connects tells of all."""

    def __init__(self) -> None:
        self._nodes: dict[str, str] = {}
        self._told = asyncio.Event()
        self._asked: set[str] = set()

    def is_asked(self, pod: str) -> bool:
        """Whether somebody waits to hear of the pod."""
        return pod in self._asked

    def see(self, seen: PodObserved) -> None:
        """Take in what the operator says of a pod."""
        if seen.state is PodState.GONE or not seen.node:
            self._nodes.pop(seen.member, None)
            return
        self._nodes[seen.member] = seen.node
        told, self._told = self._told, asyncio.Event()
        told.set()

    async def node_of(self, pod: str, expected: str, within_s: float) -> str | None:
        """The pod's node; None when nobody tells of it in time.

        It is waited for until it is the expected one: another pod may have had the name.
        """
        self._asked.add(pod)
        try:
            async with asyncio.timeout(within_s):
                while self._nodes.get(pod) != expected:
                    await self._told.wait()
        except TimeoutError:
            pass
        finally:
            self._asked.discard(pod)
        return self._nodes.get(pod)
