"""How long a watchdog takes to know its jobs again, however old they are.

    python bench/restart.py [--days 30] [--nodes 1000] [--restarts 3] [--only sqlite,redis]

A month of one job is lived through the real `Job`, brain and store, on a clock of its own: a step a second, a
checkpoint every half hour, a worker that dies every twelve hours and all members that enter the new round. Then
the store is opened, and the job restored and resumed, as a starting watchdog does: with its newest snapshot,
with that one torn, and, of a young job, with none. What is on disk is in the page cache, as it is after a crash of
the watchdog alone.
"""

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from crowd.server import redis
from figure import Figure, measured, publish, unmeasured

from holdfast.api.errors import HoldfastError
from holdfast.api.event import (
    CheckpointRecorded,
    Event,
    FindingMade,
    JobSubmitted,
    MemberEntered,
    MemberJoined,
    RestoreReported,
    RoundProgressed,
)
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import Policy
from holdfast.api.status import JobPhase
from holdfast.watchdog import brain
from holdfast.watchdog.detectors.progress import Progress
from holdfast.watchdog.job import Job
from holdfast.watchdog.senses import Senses
from holdfast.watchdog.settings import Host, RedisAddress
from holdfast.watchdog.store.redis import RedisStore
from holdfast.watchdog.store.redislink import RedisLink
from holdfast.watchdog.store.sqlite import SqliteStore
from holdfast.watchdog.store.store import Snapshot, Store

JOB: Final = "bench/old"
BEGAN_AT: Final = 1_000_000.0
DAY_S: Final = 86_400
CHECKPOINT_EVERY_S: Final = 1_800
FAULT_EVERY_S: Final = 43_200
LIMIT_S: Final = 5.0
WHOLE_DAYS: Final = 2.0  # some 9,000 lines: nearly as many as are kept
KINDS: Final = ("sqlite", "redis")
Opens = Callable[[], Store]


def senses_for(policy: Policy) -> Senses:
    """Nobody says anything: events are recorded as they are."""
    return Senses((), Progress(policy))


class Life:
    """One job, second by second."""

    def __init__(self, store: Store, nodes: int) -> None:
        self.now, self.step, self.saved = BEGAN_AT, 0, 0
        self.job = Job(JOB, store=store, fence=store.claim(), brain=brain, senses_for=senses_for)
        self.names = [f"node-{number:04d}" for number in range(nodes)]
        self.tell(JobSubmitted(Policy(JOB, nodes, nodes, processes_per_node=8)))
        for name in self.names:
            self.tell(MemberJoined(name, name, "a", "10.0.0.1", 8, (7000, 7001), warm=True))
        self.enter()

    def tell(self, event: Event) -> None:
        self.job.keep(self.job.record(event, self.now), self.now)

    @property
    def round(self) -> int:
        assert self.job.state.round is not None
        return self.job.state.round.number

    def enter(self) -> None:
        """All members go on from the newest checkpoint."""
        for name in self.names:
            self.tell(MemberEntered(name, self.round, reentrant=True, last_step=self.step or None))
        self.step = self.saved
        self.tell(RestoreReported(self.round, self.saved or None))

    def pass_days(self, days: float) -> None:
        for second in range(1, int(days * DAY_S) + 1):
            self.now, self.step = self.now + 1, self.step + 1
            self.tell(RoundProgressed(self.round, self.step))
            if second % CHECKPOINT_EVERY_S == 0:
                self.saved = self.step
                self.tell(CheckpointRecorded(self.round, self.step, "/ckpt", stall_s=0.5, took_s=20.0))
            if second % FAULT_EVERY_S == 0:
                self.fail()
            wakeup = self.job.next_wakeup(self.now)
            if wakeup is not None and wakeup <= self.now:
                self.job.keep(self.job.elapse(self.now), self.now)

    def fail(self) -> None:
        """A worker dies, somewhere else each time."""
        before, name = self.round, self.names[self.step % len(self.names)]
        subject = Subject(JOB, node=name, member=name, rank=8 * (self.step % len(self.names)))
        proof = (Evidence("bench", "the worker died", self.now),)
        died = Finding(FindingKind.PROCESS_EXIT, subject, "signal 9", proof, Confidence.CERTAIN, self.now, before)
        self.tell(FindingMade(died))
        while self.round == before:
            self.now += 1
            self.job.keep(self.job.elapse(self.now), self.now)
        self.enter()


def restarted(opens: Opens, now: float) -> float:
    """Seconds until the job is known and decided for again."""
    began = time.perf_counter()
    store = opens()
    job = Job(JOB, store=store, fence=store.claim(), brain=brain, senses_for=senses_for)
    job.restore()
    job.resume(now)
    took_s = time.perf_counter() - began
    assert job.stopped is None, job.stopped
    assert job.state.phase is not JobPhase.PENDING
    store.close()
    return took_s


def torn(opens: Opens, now: float, *, both: bool) -> float:
    """The same where the newest snapshot is there, or both, and nothing in it can be read."""
    store = opens()
    newest, fence = store.load(JOB), store.claim()
    assert newest is not None
    store.save(JOB, Snapshot(newest.offset, newest.at, b"\xc1"), fence=fence)
    if both:
        store.save(JOB, Snapshot(store.last(JOB), newest.at, b"\xc1"), fence=fence)
    store.close()
    return restarted(opens, now)


def figures_of(kind: str, opens: Opens, days: float, nodes: int, restarts: int) -> Iterator[Figure]:
    store = opens()
    began = time.perf_counter()
    life = Life(store, nodes)
    life.pass_days(days)
    extent, last = store.extent(JOB), store.last(JOB)
    snapshot = store.load(JOB)
    store.close()
    what = f"{kind}: {days:g} days of one job with {nodes} nodes"
    print(
        f"{what}: {last} lines written, {last - extent.first + 1} kept, {extent.bytes / 1e6:.2f} MB,"
        f" {len(life.job.state.incidents)} incidents in a state of {len(snapshot.state) if snapshot else 0} bytes,"
        f" lived through in {time.perf_counter() - began:.0f} s",
        flush=True,
    )
    yield measured(
        f"{what}: lines written", ours=[float(last)], other=[days * DAY_S], unit="lines (other: steps)", target=0.1
    )
    yield measured(f"{what}: journal kept", ours=[extent.bytes / 1e6], other=[64.0], unit="MB", target=1.1)
    took_s = [restarted(opens, life.now) for _ in range(restarts)]
    yield measured(f"{what}: restart", ours=took_s, other=[LIMIT_S], unit="s", target=1.0)
    took_s = [torn(opens, life.now, both=False) for _ in range(restarts)]
    yield measured(f"{what}: restart with a torn snapshot", ours=took_s, other=[LIMIT_S], unit="s", target=1.0)


def whole_figure(kind: str, opens: Opens, nodes: int, restarts: int) -> Figure:
    """Of a job that is so young that no line has gone, with no state that can be read."""
    store = opens()
    store.forget(JOB, fence=store.claim())
    life = Life(store, nodes)
    life.pass_days(WHOLE_DAYS)
    assert store.extent(JOB).is_whole, store.extent(JOB)
    what = f"{kind}: restart without any snapshot, {store.last(JOB)} lines of {nodes} nodes"
    store.close()
    took_s = [torn(opens, life.now, both=True) for _ in range(restarts)]
    return measured(what, ours=took_s, other=[LIMIT_S], unit="s", target=1.0)


@contextlib.contextmanager
def store_of(kind: str, folder: Path) -> Iterator[Opens]:
    if kind == "sqlite":
        yield lambda: SqliteStore(folder / "watchdog.db")
        return
    with redis(folder) as url:
        port = int(url.rsplit(":", 1)[1].split("/")[0])
        yield lambda: RedisStore(RedisLink(RedisAddress((Host("127.0.0.1", port),))))


def all_figures(given: argparse.Namespace) -> Iterator[Figure]:
    for kind in given.only.split(","):
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
            try:
                with store_of(kind, Path(name)) as opens:
                    yield from figures_of(kind, opens, given.days, given.nodes, given.restarts)
                    yield whole_figure(kind, opens, given.nodes, given.restarts)
            except (OSError, HoldfastError) as error:
                yield unmeasured(f"{kind}: restart", unit="s", target=1.0, reason=str(error))


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--only", default=",".join(KINDS))
    publish("restart", list(all_figures(parser.parse_args())))


if __name__ == "__main__":
    main()
