"""Jobs that nobody submitted are few for each namespace; those that are over make room."""

import pytest

from holdfast.api.errors import Unavailable
from holdfast.api.event import JobSubmitted, MemberEntered, MemberFinished, MemberJoined
from holdfast.api.policy import Policy
from holdfast.watchdog import brain
from holdfast.watchdog.program import senses_for
from holdfast.watchdog.server import watchdog as module
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.watchdog import BROUGHT_MAX, Watchdog
from holdfast.watchdog.store.memory import MemoryStore


@pytest.fixture
async def watchdog() -> Watchdog:
    made = Watchdog(MemoryStore(), brain=brain, senses_for=senses_for, fenced=lambda reason: None)
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
    monkeypatch.setattr(module, "FORGOTTEN_S", -1.0)
    watchdog.brought("team/one-more")
    assert watchdog.known("team/run-0") is None
