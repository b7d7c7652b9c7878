"""What every store promises, asked of the one that forgets, the one on disk and the one in the cluster."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forgetful_store import MemoryStore

from holdfast.api.errors import Damaged, Fenced, Unavailable
from holdfast.api.event import ClockTicked, Event, FindingMade, MemberLeft
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.incident import Incident, IncidentState
from holdfast.api.intervention import InterventionOutcome, InterventionState
from holdfast.watchdog.store.redis import RedisStore
from holdfast.watchdog.store.sqlite import SqliteStore
from holdfast.watchdog.store.store import PAGE_LINES, START, Fence, Snapshot, Store

JOB = "research/gpt"


@pytest.fixture(params=["memory", "sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    makers: dict[str, Callable[[], Store]] = {
        "memory": MemoryStore,
        "sqlite": lambda: SqliteStore(tmp_path / "watchdog.db"),
        "redis": lambda: RedisStore(request.getfixturevalue("link_to")()),
    }
    made = makers[request.param]()
    yield made
    made.close()


def left(name: str) -> Event:
    return MemberLeft(name, "done")


def incident(number: int, *, note: str = "", job: str = JOB) -> Incident:
    return Incident(
        id=f"inc-{number:04d}",
        job=job,
        kind=FindingKind.HANG,
        culprit=Subject(job, node="n1", rank=3),
        confidence=Confidence.CERTAIN,
        cause="hang",
        state=IncidentState.OPEN,
        began_at=1.0,
        detected_at=2.0 + number,
        evidence=(Evidence("test", "said so", 1.5),),
        note=note,
    )


def test_a_new_store_knows_no_job(store: Store) -> None:
    assert store.jobs() == ()
    assert store.last(JOB) == START
    assert store.load(JOB) is None
    assert list(store.tail(JOB, START)) == []
    assert store.incidents(JOB, limit=10) == ()


def test_appended_events_come_back_in_order_with_their_places_and_times(store: Store) -> None:
    fence = store.claim()
    added = store.append(JOB, [left("a"), ClockTicked()], at=10.5, after=START, fence=fence)
    store.append(JOB, [left("b")], at=11.5, after=2, fence=fence)
    lines = list(store.tail(JOB, START))
    assert tuple(lines[:2]) == added
    assert [(line.offset, line.at, line.event) for line in lines] == [
        (1, 10.5, left("a")),
        (2, 10.5, ClockTicked()),
        (3, 11.5, left("b")),
    ]
    assert store.last(JOB) == 3
    assert [line.offset for line in store.tail(JOB, 2)] == [3]


def test_a_forgotten_job_leaves_nothing_and_others_stay(store: Store) -> None:
    fence = store.claim()
    for job in (JOB, "research/other"):
        store.append(job, [left("a")], at=1.0, after=START, fence=fence)
        store.save(job, Snapshot(1, 1.0, b"state"), fence=fence)
        store.file(incident(1, job=job), fence=fence)
    store.forget(JOB, fence=fence)
    store.forget(JOB, fence=fence)
    assert store.jobs() == ("research/other",)
    assert (store.last(JOB), store.load(JOB), store.incidents(JOB, limit=9)) == (START, None, ())
    assert store.last("research/other") == 1
    assert store.append(JOB, [left("b")], at=2.0, after=START, fence=fence)[0].offset == 1
    newer = store.claim()
    with pytest.raises(Fenced):
        store.forget(JOB, fence=fence)
    assert store.last(JOB) == 1
    store.forget(JOB, fence=newer)


def test_a_finding_with_all_its_parts_survives(store: Store) -> None:
    subject = Subject(JOB, node="n1", member="m1", rank=3, gpu="GPU-1")
    finding = Finding(
        kind=FindingKind.XID,
        subject=subject,
        cause="xid 79",
        evidence=(Evidence("driver", "fell off the bus", 4.0),),
        confidence=Confidence.PROBABLE,
        began_at=3.0,
        round=2,
        error="text ✓",
        xid=79,
        also=(Subject(JOB, rank=4),),
    )
    store.append(JOB, [FindingMade(finding)], at=5.0, after=START, fence=store.claim())
    assert [line.event for line in store.tail(JOB, START)] == [FindingMade(finding)]


def test_a_journal_longer_than_a_page_is_read_whole(store: Store) -> None:
    count = 2 * PAGE_LINES + 1
    store.append(JOB, [left(str(n)) for n in range(count)], at=1.0, after=START, fence=store.claim())
    assert [line.offset for line in store.tail(JOB, START)] == list(range(1, count + 1))


def test_thousands_of_events_are_appended_at_once(store: Store) -> None:
    fence = store.claim()
    store.append(JOB, [left(str(n)) for n in range(10_000)], at=1.0, after=START, fence=fence)
    assert store.last(JOB) == 10_000
    assert store.append(JOB, [left("more")], at=2.0, after=10_000, fence=fence)[0].offset == 10_001


def test_jobs_do_not_mix(store: Store) -> None:
    fence = store.claim()
    store.append("a/one", [left("x")], at=1.0, after=START, fence=fence)
    store.append("a/two", [left("y")], at=1.0, after=START, fence=fence)
    store.save("a/one", Snapshot(1, 1.0, b"one"), fence=fence)
    store.file(incident(1, job="a/one"), fence=fence)
    assert store.jobs() == ("a/one", "a/two")
    assert [line.event for line in store.tail("a/two", START)] == [left("y")]
    assert store.load("a/two") is None
    assert store.incidents("a/two", limit=10) == ()


@pytest.mark.parametrize("after", [0, 2], ids=["before the last line", "behind a line that is not there"])
def test_an_append_at_another_place_than_the_end_is_fenced_and_writes_nothing(store: Store, after: int) -> None:
    fence = store.claim()
    store.append(JOB, [left("a")], at=1.0, after=START, fence=fence)
    with pytest.raises(Fenced):
        store.append(JOB, [left("b")], at=2.0, after=after, fence=fence)
    assert store.last(JOB) == 1


def test_the_older_claim_can_write_nothing_any_more(store: Store) -> None:
    older = store.claim()
    store.append(JOB, [left("a")], at=1.0, after=START, fence=older)
    newer = store.claim()
    with pytest.raises(Fenced):
        store.append(JOB, [left("b")], at=2.0, after=1, fence=older)
    with pytest.raises(Fenced):
        store.save(JOB, Snapshot(1, 1.0, b"state"), fence=older)
    with pytest.raises(Fenced):
        store.file(incident(1), fence=older)
    with pytest.raises(Fenced):
        store.harden(fence=older)
    store.append(JOB, [left("c")], at=3.0, after=1, fence=newer)
    store.harden(fence=newer)
    assert [line.event for line in store.tail(JOB, START)] == [left("a"), left("c")]
    assert store.load(JOB) is None
    assert store.incidents(JOB, limit=10) == ()


def test_the_newest_snapshot_is_the_one_loaded(store: Store) -> None:
    fence = store.claim()
    store.save(JOB, Snapshot(1, 1.0, b"old"), fence=fence)
    store.save(JOB, Snapshot(7, 2.0, b"new"), fence=fence)
    assert store.load(JOB) == Snapshot(7, 2.0, b"new")


def test_an_incident_filed_again_replaces_its_older_version(store: Store) -> None:
    fence = store.claim()
    for each in (incident(1), incident(2), incident(1, note="changed")):
        store.file(each, fence=fence)
    assert store.incidents(JOB, limit=10) == (incident(1, note="changed"), incident(2))


def test_the_limit_keeps_the_newest_incidents(store: Store) -> None:
    fence = store.claim()
    for number in (1, 2, 3):
        store.file(incident(number), fence=fence)
    assert store.incidents(JOB, limit=2) == (incident(2), incident(3))


class TestOnDisk:
    """What only a file can go wrong with."""

    def test_everything_is_there_after_it_is_opened_again(self, tmp_path: Path) -> None:
        path = tmp_path / "watchdog.db"
        first = SqliteStore(path)
        fence = first.claim()
        first.append(JOB, [left("a")], at=1.0, after=START, fence=fence)
        first.save(JOB, Snapshot(1, 1.0, b"state"), fence=fence)
        # Not closed: a killed process closes nothing either.
        second = SqliteStore(path)
        assert second.claim() == fence + 1
        assert [line.event for line in second.tail(JOB, START)] == [left("a")]
        assert second.load(JOB) == Snapshot(1, 1.0, b"state")
        with pytest.raises(Fenced):
            first.append(JOB, [left("b")], at=2.0, after=1, fence=fence)
        first.close()
        second.close()

    def test_only_hardening_waits_for_the_disk(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path / "watchdog.db")
        fence = store.claim()
        said: list[str] = []
        store._connection.set_trace_callback(said.append)
        store.append(JOB, [left("a")], at=1.0, after=START, fence=fence)
        assert not any("synchronous" in each for each in said)
        store.harden(fence=fence)
        assert [each for each in said if "synchronous" in each or each == "COMMIT"][1:] == [
            "PRAGMA synchronous = FULL",
            "COMMIT",
            "PRAGMA synchronous = NORMAL",
        ]
        store.close()

    def test_a_file_that_is_no_database_is_damaged(self, tmp_path: Path) -> None:
        path = tmp_path / "watchdog.db"
        path.write_bytes(b"not a database, " * 100)
        with pytest.raises(Damaged, match=r"watchdog\.db is not a readable store"):
            SqliteStore(path)

    def test_a_missing_folder_is_unavailable(self, tmp_path: Path) -> None:
        with pytest.raises(Unavailable, match="cannot be opened"):
            SqliteStore(tmp_path / "nowhere" / "watchdog.db")

    def test_a_file_somebody_else_holds_locked_is_unavailable_and_usable_afterwards(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path / "watchdog.db")
        fence = store.claim()
        other = SqliteStore(tmp_path / "watchdog.db")
        with other._transaction(), pytest.raises(Unavailable, match="locked"):
            store.append(JOB, [left("a")], at=1.0, after=START, fence=fence)
        store.append(JOB, [left("a")], at=1.0, after=START, fence=fence)
        assert store.last(JOB) == 1
        store.close()
        other.close()

    def test_a_full_disk_is_unavailable_and_loses_nothing_written_before(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path / "watchdog.db")
        fence = store.claim()
        store.append(JOB, [left("a")], at=1.0, after=START, fence=fence)
        # SQLite reports a reached page limit as it reports a full disk.
        store._connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(Unavailable, match="the disk is full"):
            store.append(JOB, [left("b" * 100_000)], at=2.0, after=1, fence=fence)
        assert [line.event for line in store.tail(JOB, START)] == [left("a")]
        store._connection.execute("PRAGMA max_page_count = 1000000")
        store.append(JOB, [left("c")], at=3.0, after=1, fence=fence)
        assert store.last(JOB) == 2
        store.close()

    @pytest.mark.parametrize(
        ("sabotage", "says"),
        [
            ("DELETE FROM journal WHERE place = 2", "line 2 of the journal of research/gpt is missing"),
            ("UPDATE journal SET event = x'ff' WHERE place = 2", "line 2 .* cannot be read"),
            ("UPDATE journal SET event = 'text' WHERE place = 2", "cannot be read"),
        ],
    )
    def test_a_line_that_is_missing_or_unreadable_is_damage(
        self, tmp_path: Path, sabotage: str, says: str
    ) -> None:
        store = SqliteStore(tmp_path / "watchdog.db")
        store.append(JOB, [left("a"), left("b"), left("c")], at=1.0, after=START, fence=store.claim())
        store._connection.execute(sabotage)
        with pytest.raises(Damaged, match=says):
            list(store.tail(JOB, START))
        store.close()

    def test_tables_of_another_version_are_refused(self, tmp_path: Path) -> None:
        store = SqliteStore(tmp_path / "watchdog.db")
        store._connection.execute("UPDATE meta SET value = 99 WHERE name = 'schema'")
        store.close()
        with pytest.raises(Damaged, match="version 99"):
            SqliteStore(tmp_path / "watchdog.db")


def test_an_answer_stays_as_it_was_first_given_until_the_job_is_forgotten(store: Store) -> None:
    fence = store.claim()
    first = InterventionOutcome("i1", InterventionState.REFUSED, "the node is not known")
    store.note_answer(JOB, first, fence=fence)
    store.note_answer(JOB, InterventionOutcome("i1", InterventionState.DONE, "evicted"), fence=fence)
    assert store.answer(JOB, "i1") == first
    assert store.answer(JOB, "i2") is None
    assert store.answer("research/other", "i1") is None
    with pytest.raises(Fenced):
        store.note_answer(JOB, first, fence=Fence(fence - 1))
    store.forget(JOB, fence=fence)
    assert store.answer(JOB, "i1") is None
