"""Standing by, leading, and giving way, in virtual time."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from holdfast.api.errors import Damaged, Fenced, Unavailable
from holdfast.watchdog.leadership import TRIED_AGAIN_WITHIN_S, Leadership
from holdfast.watchdog.store.redislink import PAUSE_S, TIMEOUT_S
from holdfast.watchdog.store.store import Fence

TTL_S = 3.0
US = Fence(7)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only when everybody waits for it, and then at once."""

    _now = 1000.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self._now = max(self._now, self._scheduled[0]._when)
        super()._run_once()


class ScriptedStore:
    """A lock whose fate is written down: what happens from which second on."""

    def __init__(self) -> None:
        self.away: tuple[float, float] = (0.0, 0.0)
        self.freed_at = 0.0
        self.taken_from_us_at = float("inf")
        self.lost_race = False
        self.calls: list[tuple[str, float]] = []
        self.released = 0
        self.keep_up: int | None = 2
        self.uncounted: tuple[float, float] = (0.0, 0.0)

    def is_held(self) -> bool:
        return self._called("look") < self.freed_at

    def take(self) -> Fence | None:
        self._called("take")
        return None if self.lost_race else US

    def renew(self, fence: Fence) -> None:
        if self._called("renew") >= self.taken_from_us_at:
            raise Fenced("another watchdog has taken over this store")

    def release(self) -> None:
        self._called("release")
        self.released += 1

    def replicas(self) -> int | None:
        if self.uncounted[0] <= self._called("replicas") < self.uncounted[1]:
            raise Unavailable("redis may not be asked for that")
        return self.keep_up

    def times(self, what: str) -> list[float]:
        return [at for name, at in self.calls if name == what]

    def _called(self, what: str) -> float:
        at = passed()
        self.calls.append((what, at))
        if self.away[0] <= at < self.away[1]:
            raise Unavailable("redis is away")
        return at


class ScriptedPeer:
    """The service in front of all; whoever leads there has this fence."""

    def __init__(self, fence: Fence | None) -> None:
        self.shows = fence
        self.asked: list[float] = []

    async def fence(self) -> Fence | None:
        self.asked.append(passed())
        return self.shows


def passed() -> float:
    """Seconds since the test began."""
    try:
        return asyncio.get_running_loop().time() - VirtualLoop._now
    except RuntimeError:
        return 0.0


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore()


@pytest.fixture
def noted() -> list[str | None]:
    return []


@pytest.fixture
def leadership(store: ScriptedStore, noted: list[str | None]) -> Leadership:
    return Leadership(store, ttl_s=TTL_S, note=noted.append)


async def kept(leadership: Leadership, for_s: float) -> None:
    """Keep leading for that long. Raises as `keep`."""
    try:
        async with asyncio.timeout(for_s):
            await leadership.keep(US)
    except TimeoutError:
        return


def test_a_leader_gets_the_time_in_which_its_store_is_asked_again() -> None:
    assert TRIED_AGAIN_WITHIN_S >= PAUSE_S + TIMEOUT_S


class TestStandingBy:
    def test_a_free_lock_is_taken_at_once(self, leadership: Leadership, store: ScriptedStore) -> None:
        assert run(leadership.won()) == US
        assert store.times("take") == [0.0]

    def test_a_lock_that_is_held_is_only_looked_at(self, leadership: Leadership, store: ScriptedStore) -> None:
        store.freed_at = 10.0
        assert run(leadership.won()) == US
        assert store.times("take") == pytest.approx([10.0], abs=TTL_S / 10)
        assert len(store.times("look")) >= 10.0 / (TTL_S / 4)

    def test_who_loses_the_race_stands_by_on(self, leadership: Leadership, store: ScriptedStore) -> None:
        store.lost_race = True

        async def race() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(leadership.won(), 5.0)

        run(race())
        assert len(store.times("take")) > 1

    def test_after_an_outage_the_leader_is_given_a_lease_to_return(
        self, leadership: Leadership, store: ScriptedStore, noted: list[str | None]
    ) -> None:
        store.freed_at, store.away = 2.0, (1.0, 20.0)
        assert run(leadership.won()) == US
        assert store.times("take") == pytest.approx([20.0 + TTL_S / 3 + TRIED_AGAIN_WITHIN_S], abs=TTL_S / 5)
        assert "redis is away" in noted
        assert noted[-1] is None

    def test_what_makes_the_store_useless_is_raised(self, leadership: Leadership, store: ScriptedStore) -> None:
        def refuse() -> Fence | None:
            raise Damaged("keys of version 99")

        store.take = refuse  # type: ignore[method-assign]
        with pytest.raises(Damaged, match="version 99"):
            run(leadership.won())


class TestLeading:
    def test_the_lock_is_renewed_three_times_per_lease(self, leadership: Leadership, store: ScriptedStore) -> None:
        run(kept(leadership, 9.5))
        assert store.times("renew") == pytest.approx([float(n) for n in range(1, 10)])

    def test_replicas_are_counted_every_ten_seconds_beside_a_renewal(self, store: ScriptedStore) -> None:
        counts: list[int | None] = []
        leadership = Leadership(store, ttl_s=TTL_S, note=lambda _: None, note_replicas=counts.append)
        run(kept(leadership, 25.5))
        assert store.times("replicas") == pytest.approx([1.0, 11.0, 21.0])
        assert counts == [2, 2, 2]

    def test_replicas_that_cannot_be_counted_are_not_known_and_keep_nothing_from_being_renewed(
        self, store: ScriptedStore, noted: list[str | None]
    ) -> None:
        counts: list[int | None] = []
        store.uncounted = (5.0, 15.0)
        leadership = Leadership(store, ttl_s=TTL_S, note=noted.append, note_replicas=counts.append)
        run(kept(leadership, 25.5))
        assert counts == [2, None, 2]
        assert store.times("renew") == pytest.approx([float(n) for n in range(1, 26)])
        assert set(noted) == {None}

    def test_ends_when_another_has_taken_over(self, leadership: Leadership, store: ScriptedStore) -> None:
        store.taken_from_us_at = 5.0
        with pytest.raises(Fenced, match="taken over"):
            run(kept(leadership, 60.0))
        assert store.times("renew")[-1] == pytest.approx(5.0)

    def test_goes_on_while_the_store_is_away_and_after(
        self, leadership: Leadership, store: ScriptedStore, noted: list[str | None]
    ) -> None:
        store.away = (2.5, 600.0)
        run(kept(leadership, 700.0))
        assert store.times("renew")[-1] > 690.0
        assert [each is None for each in noted].count(False) > 100
        assert noted[-1] is None

    def test_an_outage_is_logged_once(
        self, leadership: Leadership, store: ScriptedStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        store.away = (2.5, 60.0)
        run(kept(leadership, 70.0))
        assert caplog.text.count("store is away") == 1

    def test_a_lapsed_leader_that_finds_another_behind_the_service_ends(self, store: ScriptedStore) -> None:
        store.away = (2.5, 600.0)
        peer = ScriptedPeer(Fence(US + 1))
        leadership = Leadership(store, ttl_s=TTL_S, note=lambda _: None, peer=peer)
        with pytest.raises(Fenced, match="leads with fence 8, this one has 7"):
            run(kept(leadership, 60.0))
        # Two seconds in, the lock was renewed for the last time; before it ran out there was nobody to look for.
        assert peer.asked == pytest.approx([2.0 + TTL_S])

    @pytest.mark.parametrize("fence", [None, US, Fence(US - 1)])
    def test_nobody_or_an_older_one_behind_the_service_changes_nothing(
        self, store: ScriptedStore, fence: Fence | None
    ) -> None:
        store.away = (2.5, 600.0)
        peer = ScriptedPeer(fence)
        run(kept(Leadership(store, ttl_s=TTL_S, note=lambda _: None, peer=peer), 60.0))
        assert len(peer.asked) > 10

    def test_a_leader_whose_lock_is_renewed_asks_nobody(self, store: ScriptedStore) -> None:
        peer = ScriptedPeer(Fence(99))
        run(kept(Leadership(store, ttl_s=TTL_S, note=lambda _: None, peer=peer), 60.0))
        assert peer.asked == []


class TestResigning:
    def test_frees_the_lock(self, leadership: Leadership, store: ScriptedStore) -> None:
        leadership.resign()
        assert store.released == 1

    def test_without_a_store_is_only_logged(
        self, leadership: Leadership, store: ScriptedStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        store.away = (0.0, 1.0)
        leadership.resign()
        assert "it expires" in caplog.text
