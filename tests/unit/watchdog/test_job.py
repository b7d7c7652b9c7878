"""One job: journal before decision, what happens when the store refuses, and restarts."""

from collections.abc import Sequence
from typing import get_args

import msgspec
import pytest
from forgetful_store import MemoryStore

from holdfast.agent.launch.connection import MANNER
from holdfast.api.errors import Fenced, Unavailable
from holdfast.api.event import (
    ClockTicked,
    Event,
    FindingMade,
    JobSubmitted,
    Journaled,
    MemberJoined,
    MemberLeft,
    RoundProgressed,
    WatchdogStarted,
)
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import Policy
from holdfast.api.round import Endpoint, Entry, Idle, MemberRanks, Restore, Round
from holdfast.api.status import RankStatus
from holdfast.watchdog.brain.roster import Member, MemberState, Roster
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.step import Reason, Show, Step, changed
from holdfast.watchdog.detectors.detector import (
    Connected,
    Detector,
    Expected,
    Heard,
    Left,
    Placed,
    Reported,
    RoundStarted,
    RoundStopped,
    Sample,
)
from holdfast.watchdog.detectors.progress import Newest
from holdfast.watchdog.job import RETURN_S, SNAPSHOT_EVERY_LINES, STORE_RETRY_S, Job
from holdfast.watchdog.journal.replay import Verdict, replay, walk
from holdfast.watchdog.senses import Senses
from holdfast.watchdog.store.store import START, Fence, Snapshot

JOB = "research/gpt"
POLICY = Policy(job=JOB, nodes_min=1, nodes_max=2)


def round_of(number: int) -> Round:
    return Round(
        job=JOB,
        number=number,
        ranks=(MemberRanks("m1", "n1", 0, 1),),
        endpoint=Endpoint("127.0.0.1", 4000),
        restore=Restore(),
        entry=Entry.RESPAWN,
        reason="test",
    )


class CountingBrain:
    """Every finding makes the next round; the reason field shows the events in the order they were applied."""

    def __init__(self, wakeup: float | None = None) -> None:
        self.wakeup = wakeup

    def initial(self, job: str) -> JobState:
        return JobState(job=job, reason="")

    def advance(self, state: JobState, event: Event, now: float) -> Step:
        state = changed(state, reason=f"{state.reason} {type(event).__name__}@{now:g}".strip())
        match event:
            case JobSubmitted(policy=policy):
                return Step(changed(state, policy=policy), (), Reason("submitted", ""))
            case FindingMade():
                shown = round_of(state.round.number + 1 if state.round else 1)
                return Step(changed(state, round=shown, desired=shown), (Show(shown),), Reason("round", ""))
            case MemberJoined(member=name, node=node):
                member = Member(name, node, event.boot, "", 1, (4000,), event.warm, MemberState.PRESENT, now)
                return Step(changed(state, members=state.members.joined(member)), (), Reason("joined", ""))
            case MemberLeft(reason="poison"):
                raise ZeroDivisionError("no ports")
            case _:
                return Step(state, (), Reason("noted", ""))

    def next_wakeup(self, state: JobState) -> float | None:
        return self.wakeup


class RecordingDetector(Detector):
    """Remembers samples; makes one finding for each member it hears of by the name `faulty`."""

    subscribes_to = get_args(Sample)

    def __init__(self) -> None:
        self.seen: list[Sample] = []
        self.wakeup: float | None = None

    def observe(self, sample: Sample, now: float) -> Sequence[Finding]:
        self.seen.append(sample)
        return (finding(now),) if sample == Heard("faulty") else ()

    def elapse(self, now: float) -> Sequence[Finding]:
        if self.wakeup is None or now < self.wakeup:
            return ()
        self.wakeup = None
        return (finding(now),)

    def next_wakeup(self) -> float | None:
        return self.wakeup


class SilentGauge:
    """Knows nothing, except that the member `moving` completed a step."""

    subscribes_to = (Reported,)

    def observe(self, sample: Sample, now: float) -> Sequence[Event]:
        return (RoundProgressed(1, 5),) if sample == Heard("moving") else ()

    def ranks(self, now: float) -> tuple[RankStatus, ...]:
        return ()

    def last_ranks(self, now: float) -> tuple[RankStatus, ...]:
        return ()

    def newest(self) -> Newest:
        return Newest()

    def step(self) -> int | None:
        return None

    def loss(self) -> float | None:
        return None

    def step_time_s(self) -> float | None:
        return None


class FailingStore(MemoryStore):
    """Refuses every write while `full`."""

    full = False

    def append(
        self, job: str, events: Sequence[Event], *, at: float, after: int, fence: Fence
    ) -> tuple[Journaled, ...]:
        self._refuse()
        return super().append(job, events, at=at, after=after, fence=fence)

    def save(self, job: str, snapshot: Snapshot, *, fence: Fence) -> None:
        self._refuse()
        super().save(job, snapshot, fence=fence)

    def _refuse(self) -> None:
        if self.full:
            raise Unavailable("the disk is full")


class Bench:
    """A job over a store, with a detector to look into."""

    def __init__(self, *, store: MemoryStore | None = None, brain: CountingBrain | None = None) -> None:
        self.store = store if store is not None else FailingStore()
        self.brain = brain if brain is not None else CountingBrain()
        self.detectors: list[RecordingDetector] = []
        self.job = Job(
            JOB, store=self.store, fence=self.store.claim(), brain=self.brain, senses_for=self.senses_for
        )

    def senses_for(self, policy: Policy) -> Senses:
        self.detectors.append(RecordingDetector())
        return Senses(self.detectors[-1:], SilentGauge())

    @property
    def detector(self) -> RecordingDetector:
        return self.detectors[-1]

    def events(self) -> list[str]:
        return [type(line.event).__name__ for line in self.store.tail(JOB, START)]


def finding(now: float) -> Finding:
    return Finding(
        kind=FindingKind.PROCESS_EXIT,
        subject=Subject(JOB, node="n1", rank=0),
        cause="signal 9",
        evidence=(Evidence("test", "died", now),),
        confidence=Confidence.CERTAIN,
        began_at=now,
    )


def joined(name: str) -> MemberJoined:
    return MemberJoined(name, f"node-{name}", "boot", "127.0.0.1", 1, (4000,), warm=True)


def watched(store: MemoryStore | None = None, brain: CountingBrain | None = None) -> Bench:
    bench = Bench(store=store, brain=brain)
    bench.job.demand(JobSubmitted(POLICY), 1.0)
    return bench


def test_a_fact_is_journaled_and_applied_with_the_same_time() -> None:
    bench = watched()
    bench.job.record(joined("m1"), 2.0)
    assert bench.events() == ["JobSubmitted", "MemberJoined"]
    assert bench.job.state.reason == "JobSubmitted@1 MemberJoined@2"
    assert (bench.job.offset, bench.job.last_at) == (2, 2.0)


def test_samples_before_the_job_is_submitted_prove_nothing() -> None:
    bench = Bench()
    assert bench.job.observe(Heard("faulty"), 1.0) == ()
    assert bench.events() == []


def test_a_sample_that_proves_a_fault_leads_to_a_round_that_the_senses_are_told_of() -> None:
    bench = watched()
    effects = bench.job.observe(Heard("faulty"), 2.0)
    assert effects == (Show(round_of(1)),)
    assert bench.detector.seen[-2:] == [Heard("faulty"), RoundStarted(round_of(1))]
    assert bench.events() == ["JobSubmitted", "FindingMade"]


def test_samples_themselves_are_not_journaled() -> None:
    bench = watched()
    bench.job.observe(Heard("m1"), 2.0)
    assert bench.events() == ["JobSubmitted"]


def test_an_event_the_brain_fails_on_changes_nothing_and_the_next_one_is_applied() -> None:
    bench = watched()
    bench.job.record(MemberLeft("m1", "poison"), 2.0)
    bench.job.record(joined("m2"), 3.0)
    assert bench.job.state.reason == "JobSubmitted@1 MemberJoined@3"
    assert bench.events() == ["JobSubmitted", "MemberLeft", "MemberJoined"]
    bench.job.save(4.0)
    assert replay(bench.store, JOB, brain=bench.brain).verdict is Verdict.EQUAL


class TestStoreRefuses:
    @pytest.fixture
    def bench(self) -> Bench:
        return watched(FailingStore())

    @staticmethod
    def fill(bench: Bench, *, full: bool) -> None:
        assert isinstance(bench.store, FailingStore)
        bench.store.full = full

    def test_nothing_is_decided_and_the_trouble_is_told(self, bench: Bench) -> None:
        before = bench.job.state
        self.fill(bench, full=True)
        assert bench.job.observe(Heard("faulty"), 2.0) == ()
        assert bench.job.state == before
        assert bench.job.trouble == "the disk is full"
        assert bench.job.next_wakeup(2.0) == 2.0 + STORE_RETRY_S

    def test_what_waited_is_applied_in_order_once_it_takes_events_again(self, bench: Bench) -> None:
        self.fill(bench, full=True)
        bench.job.observe(Heard("faulty"), 2.0)
        bench.job.record(joined("m1"), 2.1)
        self.fill(bench, full=False)
        assert bench.job.elapse(2.0 + STORE_RETRY_S) == (Show(round_of(1)),)
        assert bench.events() == ["JobSubmitted", "FindingMade", "MemberJoined"]
        assert bench.job.trouble is None

    def test_it_is_asked_again_only_after_a_while(self, bench: Bench) -> None:
        self.fill(bench, full=True)
        bench.job.record(joined("m1"), 2.0)
        self.fill(bench, full=False)
        bench.job.record(joined("m2"), 2.5)
        assert bench.events() == ["JobSubmitted"]
        bench.job.record(joined("m3"), 3.0)
        assert bench.events() == ["JobSubmitted", *["MemberJoined"] * 3]

    def test_progress_is_not_kept_because_the_next_one_replaces_it(self, bench: Bench) -> None:
        self.fill(bench, full=True)
        bench.job.observe(Heard("moving"), 2.0)
        self.fill(bench, full=False)
        bench.job.record(joined("m1"), 5.0)
        assert bench.events() == ["JobSubmitted", "MemberJoined"]

    def test_what_somebody_waits_for_is_refused_at_once_and_not_done_later(self, bench: Bench) -> None:
        self.fill(bench, full=True)
        with pytest.raises(Unavailable):
            bench.job.demand(JobSubmitted(Policy(job=JOB, nodes_min=1, nodes_max=1)), 2.0)
        with pytest.raises(Unavailable):
            bench.job.demand(JobSubmitted(Policy(job=JOB, nodes_min=1, nodes_max=1)), 2.1)
        self.fill(bench, full=False)
        bench.job.elapse(9.0)
        assert bench.events() == ["JobSubmitted"]

    def test_a_demand_behind_facts_that_still_wait_is_refused(self, bench: Bench) -> None:
        self.fill(bench, full=True)
        bench.job.record(joined("m1"), 2.0)
        with pytest.raises(Unavailable):
            bench.job.demand(JobSubmitted(Policy(job=JOB, nodes_min=1, nodes_max=1)), 2.1)

    def test_the_trouble_ends_by_itself_when_nothing_waits(self, bench: Bench) -> None:
        self.fill(bench, full=True)
        bench.job.save(2.0)
        assert bench.job.trouble is not None
        self.fill(bench, full=False)
        bench.job.elapse(3.0)
        assert bench.job.trouble is None


def test_losing_the_fence_is_not_survived() -> None:
    bench = watched()
    bench.store.claim()
    with pytest.raises(Fenced):
        bench.job.record(joined("m1"), 2.0)


class TestTime:
    def test_the_brain_is_told_when_its_time_has_come_and_not_before(self) -> None:
        bench = watched(brain=CountingBrain(wakeup=5.0))
        assert bench.job.next_wakeup(2.0) == 5.0
        bench.job.elapse(4.9)
        assert bench.events() == ["JobSubmitted"]
        bench.job.elapse(5.0)
        assert bench.events() == ["JobSubmitted", "ClockTicked"]

    def test_the_sooner_of_brain_and_detectors_wakes(self) -> None:
        bench = watched(brain=CountingBrain(wakeup=5.0))
        bench.detector.wakeup = 3.0
        assert bench.job.next_wakeup(2.0) == 3.0
        bench.job.elapse(3.0)
        assert bench.events() == ["JobSubmitted", "FindingMade"]

    def test_nothing_to_wait_for_is_no_wakeup(self) -> None:
        assert watched().job.next_wakeup(2.0) is None

    def test_a_tick_that_changes_nothing_does_not_spin(self) -> None:
        class Stuck(CountingBrain):
            def advance(self, state: JobState, event: Event, now: float) -> Step:
                if isinstance(event, ClockTicked):
                    return Step(state, (), Reason("nothing", ""))
                return super().advance(state, event, now)

        bench = watched(brain=Stuck(wakeup=1.0))
        bench.job.elapse(2.0)
        assert bench.job.next_wakeup(2.0) == 3.0


def test_members_have_the_time_in_which_a_launcher_notices_that_its_watchdog_is_gone() -> None:
    assert 1.5 * MANNER.ping_s <= RETURN_S  # a ping's answer is waited for half as long as lies between pings


class TestRestart:
    def restarted(self, first: Bench) -> Bench:
        second = Bench(store=first.store)
        second.job.restore()
        return second

    def test_the_state_is_the_same_from_the_journal_alone(self) -> None:
        first = watched()
        first.job.observe(Heard("faulty"), 2.0)
        second = self.restarted(first)
        assert second.job.state == first.job.state
        assert (second.job.offset, second.job.last_at) == (2, 2.0)

    def test_the_state_is_the_same_from_a_snapshot_and_the_lines_behind_it(self) -> None:
        first = watched()
        for number in range(SNAPSHOT_EVERY_LINES + 5):
            first.job.keep(first.job.record(joined(f"m{number}"), 2.0 + number), 2.0 + number)
        snapshot = first.store.load(JOB)
        assert snapshot is not None
        assert START < snapshot.offset < first.job.offset
        assert self.restarted(first).job.state == first.job.state

    def test_a_snapshot_of_another_version_is_passed_over(self) -> None:
        first = watched()
        first.job.record(joined("m1"), 2.0)
        first.store.save(JOB, Snapshot(1, 1.0, msgspec.msgpack.encode({"job": 7})), fence=first.job._fence)
        assert self.restarted(first).job.state == first.job.state

    def test_the_brain_hears_of_the_restart_and_nothing_that_was_done_is_done_again(self) -> None:
        first = watched()
        first.job.observe(Heard("faulty"), 2.0)
        second = self.restarted(first)
        assert second.job.resume(10.0) == ()
        assert second.events()[-1] == "WatchdogStarted"

    def test_members_and_the_round_get_their_grace_before_anything_else(self) -> None:
        first = watched()
        first.job.record(joined("m1"), 2.0)
        first.job.observe(Heard("faulty"), 3.0)
        second = self.restarted(first)
        second.job.resume(10.0)
        assert second.detector.seen == [Expected("m1", "node-m1", by=10.0 + RETURN_S), RoundStarted(round_of(1))]

    def test_members_known_to_be_lost_are_not_watched(self) -> None:
        first = watched()
        first.job.record(joined("m1"), 2.0)
        lost = msgspec.structs.replace(next(iter(first.job.state.members)), standing=MemberState.LOST)
        first.job.state = changed(first.job.state, members=Roster.of(lost), desired=Idle(JOB, 3, "forming"))
        first.job.record(MemberLeft("m1", "x"), 3.0)
        first.job.save(3.0)
        second = self.restarted(first)
        second.job.resume(10.0)
        assert second.detector.seen == [RoundStopped(3), Left("m1")]


def test_a_changed_policy_is_watched_with_new_senses() -> None:
    bench = watched()
    bench.job.record(joined("m1"), 2.0)
    bench.job.demand(JobSubmitted(Policy(job=JOB, nodes_min=1, nodes_max=1)), 3.0)
    assert len(bench.detectors) == 2
    assert bench.detector.seen == [Connected("m1", "node-m1")]


def test_where_nodes_are_is_known_to_new_senses_whenever_it_was_told() -> None:
    bench = Bench()
    bench.job.observe(Placed("n1", "r1"), 0.5)
    bench.job.demand(JobSubmitted(POLICY), 1.0)
    assert bench.detector.seen == [Placed("n1", "r1")]
    bench.job.observe(Placed("n1", "r2"), 2.0)
    bench.job.demand(JobSubmitted(Policy(job=JOB, nodes_min=1, nodes_max=1)), 3.0)
    assert bench.detector.seen == [Placed("n1", "r2")]


class TestReplay:
    def test_the_journal_leads_to_the_state_kept(self) -> None:
        bench = watched()
        bench.job.observe(Heard("faulty"), 2.0)
        bench.job.save(2.0)
        outcome = replay(bench.store, JOB, brain=bench.brain)
        assert outcome.verdict is Verdict.EQUAL
        assert (outcome.lines, outcome.compared_at, outcome.state) == (2, 2, bench.job.state)

    def test_lines_behind_the_snapshot_do_not_disturb_the_comparison(self) -> None:
        bench = watched()
        bench.job.save(1.0)
        bench.job.record(joined("m1"), 2.0)
        outcome = replay(bench.store, JOB, brain=bench.brain)
        assert (outcome.verdict, outcome.compared_at, outcome.lines) == (Verdict.EQUAL, 1, 2)

    def test_without_a_snapshot_there_is_nothing_to_compare(self) -> None:
        assert replay(watched().store, JOB, brain=CountingBrain()).verdict is Verdict.NOTHING_KEPT

    def test_a_brain_that_decides_otherwise_is_caught_and_the_difference_named(self) -> None:
        bench = watched()
        bench.job.save(1.0)

        class Other(CountingBrain):
            def advance(self, state: JobState, event: Event, now: float) -> Step:
                step = super().advance(state, event, now)
                return Step(changed(step.state, restart_count=1), step.effects, step.reason)

        outcome = replay(bench.store, JOB, brain=Other())
        assert outcome.verdict is Verdict.DIFFERENT
        assert outcome.differences == ("restart_count: the journal gives 1, kept was 0",)

    @pytest.mark.parametrize(
        ("snapshot", "says"),
        [
            (Snapshot(9, 1.0, b""), "the snapshot is of line 9, the journal ends at 1"),
            (Snapshot(1, 1.0, b"\xc1"), "the snapshot is not readable"),
        ],
        ids=["ahead", "unreadable"],
    )
    def test_a_snapshot_that_cannot_be_true_is_different(self, snapshot: Snapshot, says: str) -> None:
        bench = watched()
        bench.store.save(JOB, snapshot, fence=bench.job._fence)
        outcome = replay(bench.store, JOB, brain=bench.brain)
        assert outcome.verdict is Verdict.DIFFERENT
        assert says in outcome.differences[0]

    def test_every_line_is_told_with_its_effects_and_reason(self) -> None:
        bench = watched()
        bench.job.observe(Heard("faulty"), 2.0)
        told = list(walk(bench.store, JOB, brain=bench.brain))
        assert [(each.line.offset, each.reason.rule) for each in told] == [(1, "submitted"), (2, "round")]
        assert told[1].effects == (Show(round_of(1)),)


def test_a_detector_that_fails_proves_nothing_and_keeps_nobody_else_from_judging() -> None:
    class Broken(RecordingDetector):
        def observe(self, sample: Sample, now: float) -> Sequence[Finding]:
            raise KeyError("unexpected")

        def elapse(self, now: float) -> Sequence[Finding]:
            raise KeyError("unexpected")

    works = RecordingDetector()
    senses = Senses([Broken(), works], SilentGauge())
    works.wakeup = 1.0
    assert senses.observe(Heard("faulty"), 1.0) == (FindingMade(finding(1.0)),)
    assert senses.elapse(1.0) == (FindingMade(finding(1.0)),)
    assert senses.failures == {"Broken": 2, "RecordingDetector": 0, "SilentGauge": 0}


def test_a_restart_is_journaled() -> None:
    bench = watched()
    bench.job.resume(2.0)
    assert isinstance(list(bench.store.tail(JOB, START))[-1].event, WatchdogStarted)
