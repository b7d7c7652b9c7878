"""What only a Redis can go wrong with: lost answers, late writes, lost lines, a Redis that must not be used."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from cluster_keys import Authority
from debian_packages import packaged_program
from lossy_line import Loss, LossyLine
from redis.crc import key_slot
from redis_server import READY_S_MAX, RedisServer
from server_process import ServerProcess, free_port

from holdfast.api.errors import Damaged, Fenced, InvalidInput, Unavailable
from holdfast.api.event import ClockTicked, Event, MemberLeft
from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import Incident, IncidentState
from holdfast.api.intervention import InterventionOutcome, InterventionState
from holdfast.watchdog.settings import Host, RedisAddress
from holdfast.watchdog.store.redis import RedisLease, RedisStore
from holdfast.watchdog.store.redislink import TIMEOUT_S, RedisLink
from holdfast.watchdog.store.store import START, Fence, Snapshot

pytestmark = pytest.mark.needs("redis")

JOB = "research/gpt"
PREFIX = "holdfast:{watchdog}:"

Links = Callable[..., RedisLink]


def left(name: str) -> Event:
    return MemberLeft(name, "done")


def events(store: RedisStore) -> list[Event]:
    return [line.event for line in store.tail(JOB, START)]


def incident() -> Incident:
    return Incident(
        id="inc-1",
        job=JOB,
        kind=FindingKind.HANG,
        culprit=Subject(JOB, node="n1"),
        confidence=Confidence.CERTAIN,
        cause="hang",
        state=IncidentState.OPEN,
        began_at=1.0,
        detected_at=2.5,
        evidence=(),
    )


@pytest.fixture
def store(link_to: Links, line: LossyLine) -> RedisStore:
    """Behind the line that loses things."""
    return RedisStore(link_to(line.port))


def test_the_keys_are_a_promise(link_to: Links, raw: redis.Redis) -> None:
    store = RedisStore(link_to())
    fence = store.claim()
    store.append(JOB, [left("a")], at=1.0, after=START, fence=fence)
    store.save(JOB, Snapshot(1, 1.0, b"state"), fence=fence)
    store.append(JOB, [left("b")], at=2.0, after=1, fence=fence)
    store.save(JOB, Snapshot(2, 2.0, b"state"), fence=fence)
    store.file(incident(), fence=fence)
    store.note_answer(JOB, InterventionOutcome("i1", InterventionState.DONE, "paused"), fence=fence)
    kinds = {name.decode(): raw.type(name).decode() for name in raw.scan_iter()}
    assert kinds == {
        f"{PREFIX}schema": "string",
        f"{PREFIX}fence": "string",
        f"{PREFIX}writes": "string",
        f"{PREFIX}jobs": "set",
        f"{PREFIX}journal:{JOB}": "list",
        f"{PREFIX}extent:{JOB}": "hash",
        f"{PREFIX}snapshot:{JOB}": "string",
        f"{PREFIX}earlier:{JOB}": "string",
        f"{PREFIX}incidents:{JOB}": "hash",
        f"{PREFIX}order:{JOB}": "zset",
        f"{PREFIX}answers:{JOB}": "hash",
    }
    assert all(raw.ttl(name) == -1 for name in kinds)
    assert {key_slot(name.encode()) for name in kinds} == {key_slot(b"watchdog")}


class TestAnAppendWithoutAnAnswer:
    def lose_answer(self, store: RedisStore, line: LossyLine, given: list[Event], fence: Fence) -> None:
        line.loss = Loss.ANSWERS
        with pytest.raises(Unavailable, match="no answer"):
            store.append(JOB, given, at=2.0, after=1, fence=fence)
        line.loss = Loss.NOTHING

    @pytest.fixture
    def fence(self, store: RedisStore) -> Fence:
        fence = store.claim()
        store.append(JOB, [left("first")], at=1.0, after=START, fence=fence)
        return fence

    def test_is_not_written_twice_when_it_is_asked_for_again(
        self, store: RedisStore, line: LossyLine, fence: Fence
    ) -> None:
        self.lose_answer(store, line, [left("a"), left("b")], fence)
        added = store.append(JOB, [left("a"), left("b")], at=3.0, after=1, fence=fence)
        assert [(each.offset, each.at) for each in added] == [(2, 2.0), (3, 2.0)]
        assert events(store) == [left("first"), left("a"), left("b")]

    def test_is_found_by_a_longer_one_which_adds_the_rest(
        self, store: RedisStore, line: LossyLine, fence: Fence
    ) -> None:
        self.lose_answer(store, line, [left("a"), ClockTicked(), left("b")], fence)
        added = store.append(JOB, [left("a"), left("b"), left("c")], at=3.0, after=1, fence=fence)
        # The tick is needless by now, but it is written: whoever reads the journal later applies it as well.
        assert [each.event for each in added] == [left("a"), ClockTicked(), left("b"), left("c")]
        assert [each.offset for each in added] == [2, 3, 4, 5]
        assert events(store) == [left("first"), *(each.event for each in added)]

    def test_is_returned_also_when_it_was_given_up(self, store: RedisStore, line: LossyLine, fence: Fence) -> None:
        self.lose_answer(store, line, [left("given up")], fence)
        added = store.append(JOB, [left("another")], at=3.0, after=1, fence=fence)
        assert [each.event for each in added] == [left("given up"), left("another")]

    def test_the_same_event_twice_is_two_events(self, store: RedisStore, line: LossyLine, fence: Fence) -> None:
        self.lose_answer(store, line, [left("a")], fence)
        added = store.append(JOB, [left("a"), left("a")], at=3.0, after=1, fence=fence)
        assert [each.offset for each in added] == [2, 3]
        assert events(store) == [left("first"), left("a"), left("a")]

    def test_lost_again_and_again_is_still_one(self, store: RedisStore, line: LossyLine, fence: Fence) -> None:
        self.lose_answer(store, line, [left("a")], fence)
        self.lose_answer(store, line, [left("a"), left("b")], fence)
        line.loss = Loss.REQUESTS_HELD
        with pytest.raises(Unavailable):
            store.append(JOB, [left("a"), left("b"), left("c")], at=2.0, after=1, fence=fence)
        line.loss = Loss.NOTHING
        store.append(JOB, [left("a"), left("b"), left("c"), left("d")], at=3.0, after=1, fence=fence)
        assert events(store) == [left(name) for name in ("first", "a", "b", "c", "d")]

    def test_that_never_arrived_is_simply_written(self, store: RedisStore, line: LossyLine, fence: Fence) -> None:
        line.loss = Loss.REQUESTS_HELD
        with pytest.raises(Unavailable):
            store.append(JOB, [left("a")], at=2.0, after=1, fence=fence)
        line.loss = Loss.NOTHING
        store.append(JOB, [left("a")], at=3.0, after=1, fence=fence)
        assert events(store) == [left("first"), left("a")]

    def test_that_arrives_late_behind_a_newer_write_is_dropped(
        self, store: RedisStore, line: LossyLine, fence: Fence
    ) -> None:
        line.loss = Loss.REQUESTS_HELD
        with pytest.raises(Unavailable):
            store.append(JOB, [left("late")], at=2.0, after=1, fence=fence)
        line.loss = Loss.NOTHING
        store.forget(JOB, fence=fence)
        store.append(JOB, [left("new life")], at=3.0, after=START, fence=fence)
        line.let_go()
        assert events(store) == [left("new life")]

    def test_is_fenced_when_somebody_else_has_taken_over_meanwhile(
        self, store: RedisStore, line: LossyLine, fence: Fence, link_to: Links
    ) -> None:
        self.lose_answer(store, line, [left("a")], fence)
        other = RedisStore(link_to())
        newer = other.claim()
        other.append(JOB, [left("theirs")], at=2.5, after=2, fence=newer)
        with pytest.raises(Fenced):
            store.append(JOB, [left("a"), left("b")], at=3.0, after=1, fence=fence)
        assert events(store) == [left("first"), left("a"), left("theirs")]

    def test_of_one_job_casts_no_doubt_on_another(self, store: RedisStore, line: LossyLine, fence: Fence) -> None:
        self.lose_answer(store, line, [left("a")], fence)
        with pytest.raises(Fenced):
            store.append("a/other", [left("x")], at=3.0, after=7, fence=fence)


class TestALateWrite:
    def test_of_a_snapshot_does_not_replace_the_newer_one(self, store: RedisStore, line: LossyLine) -> None:
        fence = store.claim()
        line.loss = Loss.REQUESTS_HELD
        with pytest.raises(Unavailable):
            store.save(JOB, Snapshot(1, 1.0, b"old"), fence=fence)
        line.loss = Loss.NOTHING
        store.save(JOB, Snapshot(2, 2.0, b"new"), fence=fence)
        line.let_go()
        assert store.load(JOB) == Snapshot(2, 2.0, b"new")

    def test_of_an_older_claim_is_fenced(self, store: RedisStore, line: LossyLine, link_to: Links) -> None:
        fence = store.claim()
        line.loss = Loss.REQUESTS_HELD
        with pytest.raises(Unavailable):
            store.append(JOB, [left("late")], at=1.0, after=START, fence=fence)
        line.loss = Loss.NOTHING
        RedisStore(link_to()).claim()
        line.let_go()
        assert events(store) == []


class TestLinesThatRedisLost:
    """With its machine, when it writes its file only once a second."""

    def test_are_written_again_by_whoever_wrote_them(self, link_to: Links, raw: redis.Redis) -> None:
        store = RedisStore(link_to())
        fence = store.claim()
        for place, name in enumerate("abcd"):
            store.append(JOB, [left(name)], at=float(place), after=place, fence=fence)
        raw.ltrim(f"{PREFIX}journal:{JOB}", 0, 1)
        store.append(JOB, [left("e")], at=9.0, after=4, fence=fence)
        lines = list(store.tail(JOB, START))
        assert [line.event for line in lines] == [left(name) for name in "abcde"]
        assert [line.at for line in lines] == [0.0, 1.0, 2.0, 3.0, 9.0]

    def test_that_nobody_remembers_end_this_watchdog(self, link_to: Links, raw: redis.Redis) -> None:
        writer = RedisStore(link_to())
        fence = writer.claim()
        writer.append(JOB, [left("a"), left("b")], at=1.0, after=START, fence=fence)
        reader = RedisStore(link_to())
        newer = reader.claim()
        raw.ltrim(f"{PREFIX}journal:{JOB}", 0, 0)
        with pytest.raises(Fenced, match="ends at line 1, not at 2"):
            reader.append(JOB, [left("c")], at=2.0, after=2, fence=newer)


class TestDamage:
    @pytest.fixture
    def written(self, link_to: Links) -> RedisStore:
        store = RedisStore(link_to())
        store.append(JOB, [left("a"), left("b"), left("c")], at=1.0, after=START, fence=store.claim())
        return store

    def test_a_line_that_is_missing_is_named(self, written: RedisStore, raw: redis.Redis) -> None:
        body = raw.lindex(f"{PREFIX}journal:{JOB}", 1)
        raw.lrem(f"{PREFIX}journal:{JOB}", 1, body)
        with pytest.raises(Damaged, match="line 2 of the journal of research/gpt is missing"):
            events(written)

    def test_a_line_that_is_unreadable_is_named(self, written: RedisStore, raw: redis.Redis) -> None:
        raw.lset(f"{PREFIX}journal:{JOB}", 1, b"\xff")
        with pytest.raises(Damaged, match="line 2 of the journal of research/gpt cannot be read"):
            events(written)

    def test_a_key_that_holds_something_else_is_damage(self, written: RedisStore, raw: redis.Redis) -> None:
        raw.set(f"{PREFIX}jobs", "text")
        with pytest.raises(Damaged, match="holds something else"):
            written.jobs()

    def test_an_incident_without_a_body_is_named(self, written: RedisStore, raw: redis.Redis) -> None:
        raw.zadd(f"{PREFIX}order:{JOB}", {"inc-9": 1.0})
        with pytest.raises(Damaged, match="incident inc-9 of research/gpt is missing"):
            written.incidents(JOB, limit=3)

    def test_keys_of_another_version_are_refused(self, link_to: Links, raw: redis.Redis) -> None:
        raw.set(f"{PREFIX}schema", 99)
        with pytest.raises(Damaged, match="version 99"):
            RedisStore(link_to()).claim()
        assert raw.get(f"{PREFIX}fence") is None


class TestARedisThatIsAway:
    def test_that_hangs_costs_one_time_out_and_then_nothing_for_a_while(
        self, data_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def asked_again(*_: object, **__: object) -> None:
            raise AssertionError("it was asked again")

        server = RedisServer(data_folder)
        try:
            server.start()
            clock = [100.0]
            link = RedisLink(RedisAddress((Host("127.0.0.1", server.port),)), now=lambda: clock[0])
            store = RedisStore(link)
            fence = store.claim()
            server.pause()
            began = time.perf_counter()
            with pytest.raises(Unavailable, match="no answer within"):
                store.append(JOB, [left("a")], at=1.0, after=START, fence=fence)
            assert time.perf_counter() - began >= TIMEOUT_S
            with monkeypatch.context() as patched:
                patched.setattr(redis.Redis, "execute_command", asked_again)
                for _ in range(1000):
                    with pytest.raises(Unavailable, match="no answer within"):
                        store.harden(fence=fence)
            server.resume()
            server.process.wait_until(server.answers, READY_S_MAX)
            clock[0] += 1.5
            store.append(JOB, [left("a")], at=1.0, after=START, fence=fence)
            assert events(store) == [left("a")]
            link.close()
        finally:
            server.stop()

    def test_that_restarts_is_used_again_and_remembers(self, data_folder: Path) -> None:
        server = RedisServer(data_folder)
        try:
            server.start()
            ticks = iter(range(1000))
            link = RedisLink(RedisAddress((Host("127.0.0.1", server.port),)), now=lambda: next(ticks) * 10.0)
            store = RedisStore(link)
            fence = store.claim()
            store.append(JOB, [left("a")], at=1.0, after=START, fence=fence)
            server.kill()
            with pytest.raises(Unavailable, match=f"redis://127.0.0.1:{server.port}/0"):
                store.append(JOB, [left("b")], at=2.0, after=1, fence=fence)
            server.start()
            store.append(JOB, [left("b")], at=2.0, after=1, fence=fence)
            assert events(store) == [left("a"), left("b")]
            link.close()
        finally:
            server.stop()

    def test_whose_name_is_unknown_is_unavailable(self) -> None:
        link = RedisLink(RedisAddress((Host("nobody.invalid", 1),)))
        with pytest.raises(Unavailable, match=r"redis://nobody\.invalid:1/0"):
            RedisStore(link).claim()
        link.close()


class TestARedisThatMustNotBeUsed:
    @pytest.fixture
    def changed(self, raw: redis.Redis) -> Iterator[Callable[[str, str], None]]:
        before: dict[str, str] = {}

        def change(name: str, value: str) -> None:
            before.setdefault(name, raw.config_get(name)[name])
            raw.config_set(name, value)

        yield change
        for name, value in before.items():
            raw.config_set(name, value)

    def test_it_forgets(self, changed: Callable[[str, str], None], link_to: Links) -> None:
        changed("appendonly", "no")
        with pytest.raises(InvalidInput, match="appendonly yes"):
            link_to().check()

    def test_it_throws_away_when_full(self, changed: Callable[[str, str], None], link_to: Links) -> None:
        changed("maxmemory", "100mb")
        changed("maxmemory-policy", "allkeys-lru")
        with pytest.raises(InvalidInput, match="noeviction"):
            link_to().check()

    @pytest.mark.parametrize(("fsync", "advices"), [("always", 0), ("everysec", 0), ("no", 1)])
    def test_how_often_it_writes_is_advised_about(
        self, changed: Callable[[str, str], None], link_to: Links, fsync: str, advices: int
    ) -> None:
        changed("appendfsync", fsync)
        assert len(link_to().check()) == advices

    def test_it_is_a_replica(self, shared_redis: RedisServer, data_folder: Path) -> None:
        server = RedisServer(data_folder)
        try:
            server.start()
            with redis.Redis.from_url(server.url) as client:
                client.replicaof("127.0.0.1", shared_redis.port)
            link = RedisLink(RedisAddress((Host("127.0.0.1", server.port),)))
            with pytest.raises(InvalidInput, match="replica"):
                link.check()
            with pytest.raises(Unavailable, match="takes no writes"):
                RedisStore(link).claim()
            link.close()
        finally:
            server.stop()

    def test_its_memory_is_full(self, changed: Callable[[str, str], None], link_to: Links) -> None:
        store = RedisStore(link_to())
        fence = store.claim()
        store.append(JOB, [left("a")], at=1.0, after=START, fence=fence)
        changed("maxmemory", "1")
        with pytest.raises(Unavailable, match="memory is full"):
            store.append(JOB, [left("b")], at=2.0, after=1, fence=fence)
        changed("maxmemory", "0")
        store.append(JOB, [left("b")], at=2.0, after=1, fence=fence)
        assert events(store) == [left("a"), left("b")]

    @pytest.mark.parametrize("password", [None, "wrong-secret"])
    def test_it_wants_another_password(self, data_folder: Path, password: str | None) -> None:
        server = RedisServer(data_folder, password="right-secret")
        try:
            server.start()
            link = RedisLink(RedisAddress((Host("127.0.0.1", server.port),), password=password))
            with pytest.raises(Unavailable, match="--store-password-file") as caught:
                RedisStore(link).claim()
            assert "secret" not in str(caught.value)
            link.close()
            link = RedisLink(RedisAddress((Host("127.0.0.1", server.port),), password="right-secret"))
            assert RedisStore(link).claim() == 1
            link.close()
        finally:
            server.stop()


class TestEncrypted:
    @pytest.fixture
    def authority(self, tmp_path: Path) -> Authority:
        return Authority(tmp_path / "keys")

    @pytest.fixture
    def port(self, authority: Authority, data_folder: Path) -> Iterator[int]:
        pair, port = authority.server("redis", ["localhost"], []), free_port()
        command: list[str | Path] = [packaged_program("redis-server"), "--port", "0", "--tls-port", str(port)]
        command += ["--bind", "127.0.0.1", "--dir", data_folder, "--appendonly", "yes", "--tls-auth-clients", "no"]
        command += ["--tls-cert-file", pair.certificate, "--tls-key-file", pair.key]
        command += ["--tls-ca-cert-file", authority.certificate]
        process = ServerProcess("redis-server", command, data_folder / "redis.log")
        try:
            process.start()
            process.wait_until(lambda: _answers(port), READY_S_MAX)
            yield port
        finally:
            process.stop()

    def claim(self, host: str, port: int) -> Fence:
        link = RedisLink(RedisAddress((Host(host, port),), encrypted=True))
        try:
            return RedisStore(link).claim()
        finally:
            link.close()

    def test_it_is_spoken_to_under_the_name_in_its_certificate(
        self, port: int, authority: Authority, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        assert self.claim("localhost", port) == 1
        # The same server, under a name that the certificate does not have.
        with pytest.raises(Unavailable, match="certificate"):
            self.claim("127.0.0.1", port)

    def test_a_certificate_that_nobody_vouches_for_is_refused(self, port: int) -> None:
        with pytest.raises(Unavailable, match="certificate"):
            self.claim("localhost", port)


def _answers(port: int) -> bool:
    """Not only listens: it does that a moment before it answers anybody."""
    with redis.Redis(port=port, ssl=True, ssl_cert_reqs="none", socket_timeout=2.0) as client:
        try:
            return bool(client.ping())
        except (redis.ConnectionError, redis.TimeoutError):
            return False


@pytest.mark.parametrize("lost", ["holdfast:{watchdog}:fence", "holdfast:{watchdog}:schema"])
def test_a_redis_that_had_a_life_and_lost_its_fence_is_refused_until_it_is_emptied(
    link_to: Links, raw: redis.Redis, lost: str
) -> None:
    store, lease = RedisStore(link_to()), RedisLease(link_to(), identity="w", ttl_s=9.0)
    store.append("team/run", (left("m"),), at=1.0, after=0, fence=store.claim())
    raw.delete(lost)
    for take in (store.claim, lease.take):
        with pytest.raises(Damaged, match=r"it had a life and has lost .*: restore .* to begin anew on purpose"):
            take()
    assert raw.exists(lost) == 0
    raw.flushall()
    assert store.claim() == 1


def test_a_journal_that_is_gone_is_no_job_that_never_began(link_to: Links, raw: redis.Redis) -> None:
    store = RedisStore(link_to())
    store.append("team/run", (left("m"),), at=1.0, after=0, fence=store.claim())
    raw.delete("holdfast:{watchdog}:journal:team/run")
    with pytest.raises(Damaged, match="the journal of team/run is gone"):
        list(store.tail("team/run", 0))
    assert list(store.tail("team/other", 0)) == []
