"""Progress costs few lines, everybody sees it at once, and decisions are made from all of it."""

from collections.abc import Sequence

import msgspec
import pytest
from forgetful_store import MemoryStore

from holdfast.api.errors import Unavailable
from holdfast.api.event import (
    CheckpointRecorded,
    Event,
    FindingMade,
    InterventionRequested,
    JobSubmitted,
    Journaled,
    MemberEntered,
    MemberJoined,
    RoundProgressed,
)
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.intervention import InterventionAction, InterventionRequest
from holdfast.api.policy import CheckpointInterval, Policy
from holdfast.watchdog import brain
from holdfast.watchdog.brain.step import turn
from holdfast.watchdog.job import STORE_RETRY_S, Job
from holdfast.watchdog.journal.heldprogress import HELD_MAX_S
from holdfast.watchdog.senses import senses_for
from holdfast.watchdog.store.store import START, Fence

JOB = "research/gpt"
NODES = ("node-1", "node-2")


class RefusingStore(MemoryStore):
    away = False

    def append(
        self, job: str, events: Sequence[Event], *, at: float, after: int, fence: Fence
    ) -> tuple[Journaled, ...]:
        if self.away:
            raise Unavailable("the disk is full")
        return super().append(job, events, at=at, after=after, fence=fence)


class Training:
    """A job of two nodes that makes a step a second, from step 1 on at second 1000."""

    def __init__(self) -> None:
        self.store = RefusingStore()
        self.job = Job(JOB, store=self.store, fence=self.store.claim(), brain=brain, senses_for=senses_for)
        self.now, self.step = 1000.0, 0
        self.policy = Policy(job=JOB, nodes_min=2, nodes_max=2)
        self.job.demand(JobSubmitted(self.policy), self.now)
        for name in NODES:
            self.job.record(MemberJoined(name, name, "a", "10.0.0.1", 1, (7000, 7001), warm=True), self.now)
        assert self.job.state.round is not None
        self.round = self.job.state.round.number
        for name in NODES:
            self.job.record(MemberEntered(name, self.round, reentrant=True), self.now)

    def train(self, seconds: int) -> "Training":
        for _ in range(seconds):
            self.now, self.step = self.now + 1, self.step + 1
            self.job.record(RoundProgressed(self.round, self.step, 0.25), self.now)
        return self

    def lines(self) -> list[Journaled]:
        return list(self.store.tail(JOB, START))

    def told(self) -> list[int]:
        return [line.event.step for line in self.lines() if isinstance(line.event, RoundProgressed)]

    def replayed(self) -> bytes:
        state = brain.initial(JOB)
        for line in self.lines():
            state = turn(brain, state, line.event, line.at).state
        return msgspec.msgpack.encode(state)


def died(now: float) -> FindingMade:
    evidence = (Evidence("test", "died", now),)
    subject = Subject(JOB, node="node-1", rank=0)
    return FindingMade(Finding(FindingKind.PROCESS_EXIT, subject, "signal 9", evidence, Confidence.CERTAIN, now))


def test_an_hour_of_a_step_a_second_is_a_line_a_minute() -> None:
    training = Training().train(3600)
    assert len(training.told()) <= 3600 / HELD_MAX_S + 8


def test_of_a_young_round_half_of_its_life_may_be_held() -> None:
    assert Training().train(20).told() == [1, 2, 3, 5, 9, 17]


def test_readers_see_what_is_held() -> None:
    training = Training().train(50)
    assert training.told()[-1] < 50
    assert (training.job.shown.step, training.job.shown.high_step) == (50, 50)
    assert training.job.shown.ledger.stepped_at == training.now - 0.25


def test_the_live_state_is_what_the_journal_gives() -> None:
    training = Training().train(50)
    assert training.replayed() == msgspec.msgpack.encode(training.job.state)


def test_what_a_fault_costs_is_counted_from_the_last_second() -> None:
    training = Training().train(50)
    training.job.record(died(training.now), training.now + 5)
    assert training.told()[-1] == 50
    assert training.job.state.fault_step == 50
    assert training.job.state.ledger.useful_s == pytest.approx(49.0)
    assert training.replayed() == msgspec.msgpack.encode(training.job.state)


def test_what_somebody_asks_for_is_decided_with_what_was_held() -> None:
    training = Training().train(50)
    asked = InterventionRequest("p1", JOB, InterventionAction.PAUSE, "asked")
    training.job.demand(InterventionRequested(asked), training.now)
    assert [type(line.event) for line in training.lines()[-2:]] == [RoundProgressed, InterventionRequested]
    assert training.told()[-1] == 50


def test_a_step_at_which_a_checkpoint_is_due_is_not_held() -> None:
    training = Training()
    wanted = msgspec.structs.replace(training.policy, interval=CheckpointInterval(steps=50), generation=2)
    training.job.demand(JobSubmitted(wanted), training.now)
    training.train(49)
    assert training.job.state.saving is None
    training.train(1)
    assert training.told()[-1] == 50
    assert training.job.state.saving is not None


def test_the_first_step_of_a_round_is_not_held() -> None:
    assert Training().train(1).told() == [1]


def test_whoever_stops_writes_what_is_held() -> None:
    training = Training().train(50)
    training.job.write_progress(training.now)
    assert training.told()[-1] == 50
    assert training.job.shown is training.job.state


def test_while_the_store_refuses_a_fault_keeps_the_step_before_it() -> None:
    training = Training().train(50)
    training.store.away = True
    training.job.record(died(training.now), training.now)
    training.job.record(RoundProgressed(training.round, 51), training.now + 0.1)
    training.store.away = False
    training.job.elapse(training.now + STORE_RETRY_S)
    assert training.job.state.fault_step == 50
    assert training.job.state.ledger.useful_s == pytest.approx(49.0)
    assert training.replayed() == msgspec.msgpack.encode(training.job.state)


def test_progress_made_while_the_store_refuses_comes_once_it_does_not() -> None:
    training = Training().train(30)
    training.store.away = True
    training.job.record(CheckpointRecorded(training.round, 30, "/ckpt"), training.now)
    training.train(5)
    training.store.away = False
    training.now += STORE_RETRY_S
    training.job.elapse(training.now)
    training.train(1)
    assert training.job.shown.step == 36
    assert training.job.state.checkpoints[-1].step == 30
