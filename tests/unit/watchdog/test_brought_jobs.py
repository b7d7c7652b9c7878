"""Jobs that nobody submitted are few for each namespace; those that are over make room."""

import pytest
from forgetful_store import MemoryStore

from holdfast.api.errors import Unavailable
from holdfast.api.event import JobSubmitted, MemberEntered, MemberFinished, MemberJoined
from holdfast.api.policy import Policy
from holdfast.watchdog import brain
from holdfast.watchdog.senses import senses_for
from holdfast.watchdog.server import fleet
from holdfast.watchdog.server import watchdog as module
from holdfast.watchdog.server.fleet import DELETED
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.watchdog import BROUGHT_MAX, Watchdog
from holdfast.watchdog.store.store import START, Snapshot


@pytest.fixture
async def watchdog() -> Watchdog:
    return started(MemoryStore())


def started(store: MemoryStore) -> Watchdog:
    made = Watchdog(store, brain=brain, senses_for=senses_for, fenced=lambda reason: None)
    made.start()
    return made


def begun(watchdog: Watchdog, name: str) -> JobHost:
    """As a launcher that was started by hand brings it."""
    host = watchdog.brought(name)
    host.demand(JobSubmitted(Policy(job=name, nodes_min=1, nodes_max=1)))
    host.demand(MemberJoined("m", "n", "b", "10.0.0.1", 1, (4000,), warm=True))
    return host


def finish(host: JobHost) -> None:
    newest = host.job.state.round
    assert newest is not None
    host.demand(MemberEntered("m", newest.number, reentrant=True))
    host.demand(MemberFinished("m", newest.number, 5))
    assert host.job.state.ended_at is not None


async def test_jobs_by_hand_can_be_run_one_after_the_other_for_ever(watchdog: Watchdog) -> None:
    for number in range(2 * BROUGHT_MAX):
        finish(begun(watchdog, f"team/run-{number}"))
    assert len(watchdog.store.jobs()) == BROUGHT_MAX
    assert watchdog.known("team/run-0") is None, "the one that ended first made room"


async def test_who_runs_makes_no_room(watchdog: Watchdog) -> None:
    for number in range(BROUGHT_MAX):
        begun(watchdog, f"team/run-{number}")
    with pytest.raises(Unavailable, match="has 16 such jobs already"):
        watchdog.brought("team/one-more")
    watchdog.brought("other/job")


async def test_a_job_that_everybody_left_makes_room_in_time(
    watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(BROUGHT_MAX):
        begun(watchdog, f"team/run-{number}")
    monkeypatch.setattr(module, "LEFT_S", -1.0)
    watchdog.brought("team/one-more")
    assert watchdog.known("team/run-0") is None


async def test_a_deleted_job_stays_deleted_under_the_next_watchdog() -> None:
    store = MemoryStore()
    first = started(store)
    begun(first, "team/run")
    first.forget("team/run")
    for _ in range(2):
        following = started(store)
        with pytest.raises(Unavailable, match="team/run was deleted; submit it to run it again"):
            following.brought("team/run")
    following.host("team/run")
    following.brought("team/run")
    following.brought("team/other")


async def test_a_namespace_has_no_more_jobs_than_it_leaves_room_for(
    watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "JOBS_MAX", 8)
    for number in range(4):
        watchdog.host(f"loud/run-{number}")
    with pytest.raises(
        Unavailable, match="namespace loud has 4 jobs, and of 8 that this watchdog takes 4 are left"
    ):
        watchdog.host("loud/run-4")
    for number in range(2):
        watchdog.host(f"team/run-{number}")
    with pytest.raises(Unavailable, match="namespace team has 2 jobs"):
        watchdog.host("team/run-2")
    watchdog.host("other/run")
    watchdog.host("loud/run-0")
    watchdog.host("last/run")
    with pytest.raises(Unavailable, match="this watchdog has 8 jobs already"):
        watchdog.host("late/run")


async def test_what_made_room_may_come_again(watchdog: Watchdog) -> None:
    for number in range(BROUGHT_MAX + 1):
        finish(begun(watchdog, f"team/run-{number}"))
    assert watchdog.known("team/run-0") is None
    begun(watchdog, "team/run-0")


async def test_a_namespace_that_deletes_without_end_makes_no_other_jobs_deletion_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet, "KEPT_OF_NAMESPACE", 3)
    store = MemoryStore()
    watchdog = started(store)
    for job in ("team/run", *(f"loud/run-{number}" for number in range(5))):
        begun(watchdog, job)
        watchdog.forget(job)
    following = started(store)
    with pytest.raises(Unavailable, match="was deleted"):
        following.brought("team/run")
    following.brought("loud/run-1")
    with pytest.raises(Unavailable, match="was deleted"):
        following.brought("loud/run-2")


async def test_a_record_of_deletions_that_cannot_be_read_keeps_nobody_from_starting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    fence = store.claim()
    store.save(DELETED, Snapshot(START, 1.0, b"\xc1"), fence=fence)
    started(store).brought("team/run")
    assert "which jobs were deleted cannot be read" in caplog.text
