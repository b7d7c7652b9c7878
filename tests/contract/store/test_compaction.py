"""How a journal stays short: what goes, what never goes, and what is said of it, asked of every store."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from forgetful_store import MemoryStore
from lossy_line import Loss, LossyLine

from holdfast.api.errors import Damaged, Fenced, Unavailable
from holdfast.api.event import Event, MemberLeft
from holdfast.watchdog.store.redis import PREFIX, RedisStore
from holdfast.watchdog.store.redislink import RedisLink
from holdfast.watchdog.store.sqlite import SqliteStore
from holdfast.watchdog.store.store import START, Bound, Extent, Fence, Snapshot, Store

JOB = "research/gpt"
OTHER = "research/other"
TEN = Bound(lines=10)
Opens = Callable[[Bound], Store]


@pytest.fixture(params=["memory", "sqlite", "redis"])
def opens(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opens]:
    """Opens a store that is empty at first; what is on disk or in the cluster can be opened again."""
    made: list[Store] = []
    makers: dict[str, Opens] = {
        "memory": MemoryStore,
        "sqlite": lambda bound: SqliteStore(tmp_path / "watchdog.db", bound),
        "redis": lambda bound: RedisStore(request.getfixturevalue("link_to")(), bound),
    }

    def opened(bound: Bound) -> Store:
        made.append(makers[request.param](bound))
        return made[-1]

    yield opened
    for each in made:
        each.close()


def left(number: int) -> Event:
    return MemberLeft(f"m{number:04d}", "done")


def grow(store: Store, fence: Fence, upto: int, *, job: str = JOB) -> None:
    last = store.last(job)
    store.append(job, [left(n) for n in range(last + 1, upto + 1)], at=float(upto), after=last, fence=fence)


def snapshot(store: Store, fence: Fence, *, job: str = JOB) -> None:
    last = store.last(job)
    store.save(job, Snapshot(last, float(last), f"state {last}".encode()), fence=fence)


def places(store: Store, after: int = START, *, job: str = JOB) -> list[int]:
    return [line.offset for line in store.tail(job, after)]


def test_up_to_the_bound_everything_stays(opens: Opens) -> None:
    store = opens(TEN)
    fence = store.claim()
    for upto in (4, 8, 10):
        grow(store, fence, upto)
        snapshot(store, fence)
    assert places(store) == list(range(1, 11))
    assert store.extent(JOB).is_whole


def test_beyond_it_the_oldest_lines_go_with_the_snapshot(opens: Opens) -> None:
    store = opens(TEN)
    fence = store.claim()
    grow(store, fence, 12)
    snapshot(store, fence)
    assert places(store) == list(range(1, 13))  # no earlier snapshot would give again what they give
    grow(store, fence, 15)
    snapshot(store, fence)
    assert places(store, 5) == list(range(6, 16))
    assert store.extent(JOB).first == 6
    assert store.extent(JOB).compacted_at == 15.0
    assert store.last(JOB) == 15


def test_two_snapshots_stay(opens: Opens) -> None:
    store = opens(TEN)
    fence = store.claim()
    assert store.earlier(JOB) is None
    for upto in (3, 6, 9):
        grow(store, fence, upto)
        snapshot(store, fence)
    assert store.load(JOB) == Snapshot(9, 9.0, b"state 9")
    assert store.earlier(JOB) == Snapshot(6, 6.0, b"state 6")


def test_a_second_snapshot_of_one_line_keeps_the_earlier_one(opens: Opens) -> None:
    store = opens(TEN)
    fence = store.claim()
    for upto in (3, 6):
        grow(store, fence, upto)
        snapshot(store, fence)
    snapshot(store, fence)
    assert store.earlier(JOB) == Snapshot(3, 3.0, b"state 3")


def test_lines_behind_the_earlier_snapshot_stay_however_many_they_are(opens: Opens) -> None:
    store = opens(TEN)
    fence = store.claim()
    grow(store, fence, 5)
    snapshot(store, fence)
    grow(store, fence, 100)
    snapshot(store, fence)
    assert places(store, 5) == list(range(6, 101))
    assert store.extent(JOB).first == 6


def test_bytes_are_counted_and_bounded_too(opens: Opens) -> None:
    unbounded = opens(Bound())
    fence = unbounded.claim()
    grow(unbounded, fence, 1)
    one = unbounded.extent(JOB).bytes
    assert one > 10
    grow(unbounded, fence, 20)
    assert unbounded.extent(JOB).bytes == pytest.approx(20 * one, rel=0.1)
    unbounded.forget(JOB, fence=fence)
    store = opens(Bound(bytes=5 * one))
    fence = store.claim()
    for upto in (20, 21):
        grow(store, fence, upto)
        snapshot(store, fence)
    assert 3 * one < store.extent(JOB).bytes <= 5 * one
    assert places(store, store.extent(JOB).first - 1)[-1] == 21


def test_an_old_journal_becomes_short_little_by_little(opens: Opens) -> None:
    store = opens(Bound(lines=10, at_once=25))
    fence = store.claim()
    firsts = []
    for upto in (100, 101, 102, 103, 104):
        grow(store, fence, upto)
        snapshot(store, fence)
        firsts.append(store.extent(JOB).first)
    assert firsts == [1, 26, 51, 76, 95]


def test_what_is_gone_is_said_to_be(opens: Opens) -> None:
    store = opens(TEN)
    fence = store.claim()
    for upto in (15, 20):
        grow(store, fence, upto)
        snapshot(store, fence)
    with pytest.raises(Damaged, match="lines before 11 of the journal of research/gpt were compacted"):
        places(store)
    assert places(store, 10) == list(range(11, 21))
    assert places(store, 17) == [18, 19, 20]


def test_a_compacted_journal_goes_on_where_it_ends(opens: Opens) -> None:
    store = opens(TEN)
    fence = store.claim()
    for upto in (15, 20):
        grow(store, fence, upto)
        snapshot(store, fence)
    with pytest.raises(Fenced):
        store.append(JOB, [left(0)], at=1.0, after=10, fence=fence)
    grow(store, fence, 22)
    assert places(store, 19) == [20, 21, 22]


def test_whoever_is_fenced_compacts_nothing(opens: Opens) -> None:
    store = opens(TEN)
    older = store.claim()
    grow(store, older, 15)
    snapshot(store, older)
    newer = store.claim()
    grow(store, newer, 20)
    with pytest.raises(Fenced):
        snapshot(store, older)
    assert store.extent(JOB).is_whole
    assert store.load(JOB) == Snapshot(15, 15.0, b"state 15")
    assert store.earlier(JOB) is None


def test_jobs_do_not_mix_and_what_is_forgotten_is_whole_again(opens: Opens) -> None:
    store = opens(TEN)
    fence = store.claim()
    for job in (JOB, OTHER):
        grow(store, fence, 5, job=job)
    for upto in (15, 20):
        grow(store, fence, upto)
        snapshot(store, fence)
    assert places(store, job=OTHER) == [1, 2, 3, 4, 5]
    store.forget(JOB, fence=fence)
    assert store.extent(JOB) == Extent()
    assert store.earlier(JOB) is None
    grow(store, fence, 2)
    assert places(store) == [1, 2]


def test_what_is_kept_without_a_journal_has_no_earlier_one(opens: Opens) -> None:
    store = opens(TEN)
    fence = store.claim()
    for offset in (0, 7):
        store.save("research/gpt/last", Snapshot(offset, 1.0, b"seen"), fence=fence)
    assert store.load("research/gpt/last") == Snapshot(7, 1.0, b"seen")
    assert store.earlier("research/gpt/last") is None


class TestSqlite:
    def test_a_snapshot_that_cannot_compact_changes_nothing(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path / "watchdog.db", TEN)
        fence = store.claim()
        grow(store, fence, 15)
        snapshot(store, fence)
        grow(store, fence, 20)
        store._connection.execute(
            "CREATE TEMP TRIGGER crash BEFORE DELETE ON main.journal BEGIN SELECT RAISE(ABORT, 'crash'); END"
        )
        with pytest.raises(Unavailable, match="crash"):
            snapshot(store, fence)
        store.close()
        again = SqliteStore(tmp_path / "watchdog.db", TEN)
        assert again.load(JOB) == Snapshot(15, 15.0, b"state 15")
        assert again.earlier(JOB) is None
        assert places(again) == list(range(1, 21))
        again.close()

    def test_everything_is_there_after_it_is_opened_again(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path / "watchdog.db", TEN)
        fence = store.claim()
        for upto in (15, 20):
            grow(store, fence, upto)
            snapshot(store, fence)
        extent = store.extent(JOB)
        store.close()
        again = SqliteStore(tmp_path / "watchdog.db")
        assert again.extent(JOB) == extent
        assert again.earlier(JOB) == Snapshot(15, 15.0, b"state 15")
        again.close()

    def test_the_size_of_a_journal_of_an_earlier_version_is_counted_once(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path / "watchdog.db", TEN)
        fence = store.claim()
        grow(store, fence, 30)
        size = store.extent(JOB).bytes
        store._connection.execute("DELETE FROM extent")
        grow(store, fence, 31)
        assert store.extent(JOB).bytes == pytest.approx(size * 31 / 30, rel=0.01)
        store.close()


class TestRedis:
    def compacted(self, store: RedisStore) -> Fence:
        fence = store.claim()
        for upto in (15, 20):
            grow(store, fence, upto)
            snapshot(store, fence)
        return fence

    def test_a_snapshot_whose_answer_was_lost_is_saved_again(
        self, link_to: Callable[..., RedisLink], raw: redis.Redis, line: LossyLine
    ) -> None:
        store = RedisStore(link_to(line.port), TEN)
        fence = store.claim()
        grow(store, fence, 15)
        snapshot(store, fence)
        grow(store, fence, 20)
        line.loss = Loss.ANSWERS
        with pytest.raises(Unavailable):
            store.save(JOB, Snapshot(20, 20.0, b"state 20"), fence=fence)
        line.loss = Loss.NOTHING
        snapshot(store, fence)
        assert store.earlier(JOB) == Snapshot(15, 15.0, b"state 15")
        assert places(store, 10) == list(range(11, 21))

    def test_keys_say_that_they_are_compacted_and_go_on_to(
        self, link_to: Callable[..., RedisLink], raw: redis.Redis
    ) -> None:
        store = RedisStore(link_to(), TEN)
        grow(store, store.claim(), 5)
        assert raw.get(f"{PREFIX}schema") == b"1"
        self.compacted(store)
        assert raw.get(f"{PREFIX}schema") == b"2"
        again = RedisStore(link_to(), TEN)
        again.claim()
        assert raw.get(f"{PREFIX}schema") == b"2"
        assert again.last(JOB) == 20

    def test_lines_that_redis_lost_are_written_again_behind_what_is_gone(
        self, link_to: Callable[..., RedisLink], raw: redis.Redis
    ) -> None:
        store = RedisStore(link_to(), TEN)
        fence = self.compacted(store)
        raw.rpop(f"{PREFIX}journal:{JOB}", 2)
        assert store.last(JOB) == 18
        store.append(JOB, [left(21)], at=21.0, after=20, fence=fence)
        assert [line.event for line in store.tail(JOB, 17)] == [left(n) for n in (18, 19, 20, 21)]

    def test_a_snapshot_of_an_earlier_version_lets_nothing_go_yet(
        self, link_to: Callable[..., RedisLink], raw: redis.Redis
    ) -> None:
        store = RedisStore(link_to(), TEN)
        fence = store.claim()
        grow(store, fence, 15)
        snapshot(store, fence)
        raw.hdel(f"{PREFIX}extent:{JOB}", "snapshot", "earlier")
        for upto, first in ((20, 1), (25, 16)):
            grow(store, fence, upto)
            snapshot(store, fence)
            assert store.extent(JOB).first == first
