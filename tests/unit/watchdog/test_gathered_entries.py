"""Entries of many launchers within moments are one line of the journal, and lead to what as many lines do."""

import msgspec
from forgetful_store import MemoryStore

from holdfast.api.event import (
    JobSubmitted,
    MemberEntered,
    MemberJoined,
    MemberLeft,
    MemberReady,
    MembersEntered,
    MembersReady,
    RoundProgressed,
)
from holdfast.api.policy import Policy
from holdfast.watchdog import brain
from holdfast.watchdog.brain.step import changed, turn
from holdfast.watchdog.job import Job
from holdfast.watchdog.journal.gatheredentries import GATHERED_S, MANY_MEMBERS, GatheredEntries
from holdfast.watchdog.senses import senses_for

JOB = "research/gpt"


class Forming:
    """A job whose first round is shown, at second 1000, and which nobody has entered."""

    def __init__(self, nodes: int, *, policy: Policy | None = None) -> None:
        self.store = MemoryStore()
        self.job = Job(JOB, store=self.store, fence=self.store.claim(), brain=brain, senses_for=senses_for)
        self.now = 1000.0
        self.names = [f"node-{each}" for each in range(nodes)]
        self.job.demand(JobSubmitted(policy or Policy(JOB, nodes, nodes)), self.now)
        for name in self.names:
            self.job.record(MemberJoined(name, name, "a", "10.0.0.1", 1, (7000, 7001), warm=True), self.now)
        assert self.job.state.round is not None
        self.round = self.job.state.round.number

    def enter(self, names: list[str]) -> None:
        for name in names:
            self.job.record(MemberEntered(name, self.round, reentrant=True), self.now)

    def entered(self) -> int:
        return sum(each.entered_round == self.round for each in self.job.state.members)

    def told(self) -> list[object]:
        return [
            line.event
            for line in self.store.tail(JOB, 0)
            if isinstance(line.event, MemberEntered | MembersEntered)
        ]

    def replayed(self) -> bytes:
        state = brain.initial(JOB)
        for line in self.store.tail(JOB, 0):
            state = turn(brain, state, line.event, line.at).state
        return msgspec.msgpack.encode(state)


def test_entries_of_a_large_round_wait_some_milliseconds_and_are_one_line() -> None:
    forming = Forming(MANY_MEMBERS)
    forming.enter(forming.names)
    assert forming.entered() == 0
    assert forming.job.next_wakeup(forming.now) == forming.now + GATHERED_S
    forming.now += GATHERED_S
    forming.job.elapse(forming.now)
    assert forming.entered() == MANY_MEMBERS
    (line,) = forming.told()
    assert isinstance(line, MembersEntered)
    assert [each.member for each in line.entries] == forming.names
    assert forming.replayed() == msgspec.msgpack.encode(forming.job.state)


def test_whatever_else_happens_comes_behind_them() -> None:
    forming = Forming(MANY_MEMBERS)
    forming.enter(forming.names)
    forming.job.record(RoundProgressed(forming.round, 1), forming.now)
    assert forming.entered() == MANY_MEMBERS
    assert forming.job.state.progressed


def test_what_somebody_waits_for_comes_behind_them_too() -> None:
    forming = Forming(MANY_MEMBERS)
    forming.enter(forming.names[:2])
    forming.job.demand(MemberEntered(forming.names[2], forming.round, reentrant=True), forming.now)
    assert [type(each) for each in forming.told()] == [MembersEntered, MemberEntered]
    assert forming.entered() == 3


def test_one_alone_is_told_as_one() -> None:
    forming = Forming(MANY_MEMBERS)
    forming.enter(forming.names[:1])
    forming.now += GATHERED_S
    forming.job.elapse(forming.now)
    assert [type(each) for each in forming.told()] == [MemberEntered]


def test_entries_of_a_small_round_wait_for_nobody() -> None:
    forming = Forming(2)
    forming.enter(forming.names)
    assert forming.entered() == 2
    assert [type(each) for each in forming.told()] == [MemberEntered, MemberEntered]


def test_words_of_readiness_are_gathered_in_their_order_with_entries() -> None:
    forming, epoch = Forming(MANY_MEMBERS), 7
    gathered, state = GatheredEntries(), changed(forming.job.state, forming={epoch: forming.now})
    first, second, third = forming.names[:3]
    told = (
        MemberEntered(first, forming.round, reentrant=True),
        *(MemberReady(each, epoch) for each in (first, second)),
        MemberReady(third, 8),  # of a group that is not being formed
    )
    assert gathered.sift(told, state, forming.now) == (told[0], MembersReady(told[1:3]), told[3])
    assert gathered.sift(told[1:3], state, forming.now) == ()
    assert gathered.take() == (MembersReady(told[1:3]),)


def test_groups_get_ready_together_as_they_do_one_by_one() -> None:
    policy = Policy(JOB, 2, 4, replica_nodes=2)
    one_by_one, together = Forming(4, policy=policy), Forming(4, policy=policy)
    for each in (one_by_one, together):
        state = each.job.state
        lost = MemberLeft(each.names[3], "stopped")
        each.job.record(lost, each.now)
        each.job.record(MemberJoined("late", "late", "a", "10.0.0.1", 1, (7000, 7001), warm=True), each.now)
        state = each.job.state
        assert state.round is not None
        (epoch,) = state.forming
        ready = tuple(MemberReady(name, epoch) for name in ("late", each.names[2]))
        if each is together:
            each.job.record(MembersReady(ready), each.now)
        else:
            for word in ready:
                each.job.record(word, each.now)
        assert each.job.state.round is not None
        assert all(group.trains for group in each.job.state.round.groups)
    assert msgspec.msgpack.encode(one_by_one.job.state) == msgspec.msgpack.encode(together.job.state)


def test_together_they_lead_to_what_they_lead_to_one_by_one() -> None:
    one_by_one, together = Forming(6), Forming(6)
    entries = tuple(
        MemberEntered(name, together.round, reentrant=place % 2 == 0, last_step=place)
        for place, name in enumerate(together.names)
    )
    for entry in entries:
        one_by_one.job.record(entry, one_by_one.now)
    together.job.record(MembersEntered(entries), together.now)
    assert msgspec.msgpack.encode(one_by_one.job.state) == msgspec.msgpack.encode(together.job.state)
