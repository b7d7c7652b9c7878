"""Whether decisions can be recorded, from the first moment on."""

from collections.abc import Iterator, Sequence

import pytest
from forgetful_store import MemoryStore

from holdfast.api.errors import Unavailable
from holdfast.api.event import Event, Journaled, WatchdogStarted
from holdfast.api.policy import Policy
from holdfast.api.standing import Standing
from holdfast.watchdog import brain, program
from holdfast.watchdog.detectors.progress import Progress
from holdfast.watchdog.senses import Senses
from holdfast.watchdog.server.watchdog import Watchdog
from holdfast.watchdog.store.store import START, Fence, Snapshot


def senses_for(policy: Policy) -> Senses:
    return Senses((), Progress(policy))


@pytest.fixture
def watchdog() -> Watchdog:
    return Watchdog(MemoryStore(), brain=brain, senses_for=senses_for, fenced=lambda _: None)


def test_before_the_store_was_asked_nothing_says_that_it_answers(watchdog: Watchdog) -> None:
    assert (watchdog.standing, watchdog.trouble()) == (Standing.STARTING, "the store has not been asked yet")


def test_a_standby_tells_what_came_of_asking(watchdog: Watchdog) -> None:
    watchdog.note_store("connection refused")
    assert (watchdog.standing, watchdog.trouble()) == (Standing.STANDBY, "connection refused")
    watchdog.note_store(None)
    assert (watchdog.standing, watchdog.trouble()) == (Standing.STANDBY, None)


def test_who_leads_has_asked(watchdog: Watchdog) -> None:
    watchdog.start()
    assert (watchdog.standing, watchdog.trouble()) == (Standing.LEADING, None)


class StoreThatGoesAway(MemoryStore):
    """Refuses the call of that number, counted from `away_at = n` on, and answers again after it."""

    away_at: int | None = None

    def jobs(self) -> tuple[str, ...]:
        self._called()
        return super().jobs()

    def load(self, job: str) -> Snapshot | None:
        self._called()
        return super().load(job)

    def tail(self, job: str, after: int) -> Iterator[Journaled]:
        self._called()
        return super().tail(job, after)

    def append(
        self, job: str, events: Sequence[Event], *, at: float, after: int, fence: Fence
    ) -> tuple[Journaled, ...]:
        self._called()
        return super().append(job, events, at=at, after=after, fence=fence)

    def _called(self) -> None:
        if self.away_at is not None:
            self.away_at -= 1
            if self.away_at < 0:
                self.away_at = None
                raise Unavailable("no answer within 0.25 s")


async def test_a_store_that_goes_away_at_any_call_of_a_start_only_delays_it() -> None:
    refused_starts = 0
    for away_at in range(12):
        store = StoreThatGoesAway()
        fence = store.claim()
        for job in ("research/first", "research/second"):
            store.append(job, (WatchdogStarted(),), at=0.0, after=START, fence=fence)
        watchdog = Watchdog(store, brain=brain, senses_for=senses_for, fenced=pytest.fail)
        store.away_at = away_at
        try:
            watchdog.start(fence)
        except Unavailable:
            refused_starts += 1
            assert watchdog.standing is Standing.STARTING
            assert not list(watchdog.hosts())
            watchdog.start(fence)
        store.away_at = None
        assert watchdog.leading == fence
        assert [host.job.name for host in watchdog.hosts()] == ["research/first", "research/second"]
        for host in watchdog.hosts():
            lines = list(store.tail(host.job.name, START))
            assert [line.offset for line in lines] == list(range(1, len(lines) + 1))
            assert host.job.offset == len(lines)
    assert refused_starts >= 8  # fleet, jobs, and for each job: snapshot, lines, the line that says it goes on


async def test_a_standby_takes_over_from_a_store_that_goes_away_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program, "TAKE_UP_RETRY_S", 0.0)
    store = StoreThatGoesAway()
    fence = store.claim()
    store.away_at = 0
    watchdog = Watchdog(store, brain=brain, senses_for=senses_for, fenced=pytest.fail)
    await program._take_up(watchdog, fence)
    assert watchdog.leading == fence
