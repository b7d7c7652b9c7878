"""A job whose journal was compacted: what a restart needs of it, and what is said when that is not there."""

import msgspec
import pytest
from forgetful_store import MemoryStore

from holdfast.api.event import JobSubmitted, MemberJoined, MemberLeft
from holdfast.api.policy import Policy
from holdfast.watchdog import brain
from holdfast.watchdog.job import SNAPSHOT_EVERY_LINES, Job
from holdfast.watchdog.journal.replay import Verdict, replay
from holdfast.watchdog.senses import senses_for
from holdfast.watchdog.store.store import Bound, Snapshot

JOB = "research/gpt"
TORN = b"\xc1"


class Life:
    """A job that launchers join and leave, over a store that keeps few lines."""

    def __init__(self) -> None:
        self.store = MemoryStore(Bound(lines=100))
        self.job = self.opened()
        self.job.demand(JobSubmitted(Policy(job=JOB, nodes_min=2, nodes_max=2)), 1.0)
        self.now = 1.0

    def opened(self) -> Job:
        fence = self.store.claim()
        job = Job(JOB, store=self.store, fence=fence, brain=brain, senses_for=senses_for)
        job.restore()
        return job

    def live(self, lines: int) -> "Life":
        for _ in range(lines):
            self.now += 1
            event = (
                MemberLeft("m1", "done")
                if self.job.state.members
                else MemberJoined("m1", "n1", "a", "10.0.0.1", 1, (7000,), warm=True)
            )
            self.job.keep(self.job.record(event, self.now), self.now)
        return self

    def tear(self, snapshots: int) -> None:
        kept = [self.store._snapshots, self.store._earlier]
        for each in kept[:snapshots]:
            each[JOB] = msgspec.structs.replace(each[JOB], state=TORN)


@pytest.fixture
def old() -> Life:
    """It has made a thousand lines, of which some two hundred are there."""
    return Life().live(1000)


def test_its_journal_stays_short(old: Life) -> None:
    assert old.job.extent.first > 800
    assert old.job.extent.compacted_at is not None
    assert old.job.offset - old.job.extent.first < 100 + 2 * SNAPSHOT_EVERY_LINES


def test_it_is_restored(old: Life) -> None:
    again = old.opened()
    assert (again.stopped, again.offset) == (None, old.job.offset)
    assert msgspec.msgpack.encode(again.state) == msgspec.msgpack.encode(old.job.state)


def test_a_torn_snapshot_costs_the_lines_since_the_one_before(old: Life) -> None:
    old.tear(1)
    again = old.opened()
    assert (again.stopped, again.offset) == (None, old.job.offset)
    assert msgspec.msgpack.encode(again.state) == msgspec.msgpack.encode(old.job.state)


def test_snapshots_that_are_torn_one_after_the_other_never_leave_it_without_one(old: Life) -> None:
    for _ in range(3):
        old.tear(1)
        old.job = old.opened()
        assert old.job.stopped is None
    old.live(3 * SNAPSHOT_EVERY_LINES)
    assert msgspec.msgpack.encode(old.opened().state) == msgspec.msgpack.encode(old.job.state)


def test_without_any_state_that_can_be_read_it_stops_and_says_why(old: Life) -> None:
    old.tear(2)
    again = old.opened()
    assert again.stopped is not None
    assert "lines before" in again.stopped
    assert "were compacted, and this version of the program can read no state that was kept" in again.stopped


def test_a_whole_journal_needs_no_state() -> None:
    young = Life().live(90)
    young.tear(1)
    young.store._earlier.clear()
    again = young.opened()
    assert again.stopped is None
    assert msgspec.msgpack.encode(again.state) == msgspec.msgpack.encode(young.job.state)


def test_a_replay_begins_with_the_earlier_snapshot(old: Life) -> None:
    outcome = replay(old.store, JOB, brain=brain)
    assert outcome.verdict is Verdict.EQUAL
    assert outcome.begun_at == old.job._saved_offset - SNAPSHOT_EVERY_LINES
    wrong = msgspec.structs.replace(brain.initial(JOB), step=7)
    newest = old.store.load(JOB)
    assert newest is not None
    old.store._snapshots[JOB] = Snapshot(newest.offset, newest.at, msgspec.msgpack.encode(wrong))
    assert replay(old.store, JOB, brain=brain).verdict is Verdict.DIFFERENT


def test_its_history_begins_where_it_can(old: Life) -> None:
    told = list(old.job.history())
    assert told[-1].line.offset == old.job.offset
    assert told[-1].state == old.job.state
