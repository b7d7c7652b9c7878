"""What one job's journal cannot apply stops that job, with a clear word, and no other one."""

import pytest
from forgetful_store import MemoryStore

from holdfast.api.errors import Damaged, Unavailable
from holdfast.api.event import ClockTicked, JobSubmitted, MemberJoined
from holdfast.api.policy import Policy
from holdfast.watchdog import brain
from holdfast.watchdog.senses import senses_for
from holdfast.watchdog.server.jobs import status
from holdfast.watchdog.server.watchdog import Watchdog

POISONED, SOUND = "research/poisoned", "research/sound"


def joined(shown: int) -> MemberJoined:
    return MemberJoined("m1", "n1", "b1", "127.0.0.1", 1, (4000,), warm=True, shown=shown)


def with_journals(store: MemoryStore, *, shown: int = 2**64 - 1) -> MemoryStore:
    """A store as a watchdog left it that took every number: a round beyond it cannot be written down."""
    fence = store.claim()
    for job, number in ((POISONED, shown), (SOUND, 0)):
        events = (JobSubmitted(Policy(job, 1, 1)), joined(number), *([ClockTicked()] * 70))
        store.append(job, events, at=10.0, after=0, fence=fence)
    return store


def watchdog_over(store: MemoryStore) -> Watchdog:
    return Watchdog(store, brain=brain, senses_for=senses_for, fenced=pytest.fail)


async def test_a_number_that_nothing_can_write_down_stops_its_job_and_no_start() -> None:
    watchdog = watchdog_over(with_journals(MemoryStore()))
    watchdog.start()
    poisoned, sound = watchdog.known(POISONED), watchdog.known(SOUND)
    assert poisoned is not None
    assert sound is not None
    assert "other jobs go on; delete this job" in status(poisoned).reason
    assert sound.job.trouble is None
    assert sound.job.state.round is not None
    assert watchdog.trouble() is None  # it is ready: the store takes everything
    with pytest.raises(Unavailable, match="OverflowError"):
        poisoned.demand(ClockTicked())
    watchdog.stop()


class Unreadable(MemoryStore):
    """One job's journal has a line that nobody can read."""

    def tail(self, job, after):  # type: ignore[no-untyped-def]
        if job == POISONED:
            raise Damaged(f"line 7 of the journal of {job} cannot be read")
        return super().tail(job, after)


async def test_a_line_that_cannot_be_read_stops_its_job_until_that_is_deleted() -> None:
    store = with_journals(Unreadable(), shown=0)
    watchdog = watchdog_over(store)
    watchdog.start()
    poisoned = watchdog.known(POISONED)
    assert poisoned is not None
    assert "line 7 of the journal" in status(poisoned).reason
    poisoned.record(joined(0))
    assert store.last(POISONED) == 72  # nothing is added to it
    watchdog.forget(POISONED)
    assert watchdog.host(POISONED).job.stopped is None
    watchdog.stop()


async def test_what_breaks_while_it_runs_stops_the_job_and_no_connection_of_others() -> None:
    watchdog = watchdog_over(MemoryStore())
    watchdog.start()
    host = watchdog.host(SOUND)
    host.record(JobSubmitted(Policy(SOUND, 1, 1)))
    host.record(joined(2**64 - 1))
    host.stop()  # writes a snapshot
    assert host.job.stopped is not None
    other = watchdog.host("research/other")
    other.record(JobSubmitted(Policy("research/other", 1, 1)))
    assert other.job.state.policy is not None
    watchdog.stop()
