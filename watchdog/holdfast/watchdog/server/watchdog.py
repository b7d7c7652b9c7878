"""All jobs of one watchdog, over one store."""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

from aiohttp import WSCloseCode, web

from holdfast.api.errors import Fenced, Unavailable
from holdfast.api.fleet import FleetReport
from holdfast.api.standing import Standing
from holdfast.watchdog.brain.reputation import namespace_of
from holdfast.watchdog.brain.step import Brain, Effect
from holdfast.watchdog.job import Job
from holdfast.watchdog.journal import lastseen
from holdfast.watchdog.metrics.counts import Tally
from holdfast.watchdog.senses import SensesFor
from holdfast.watchdog.server.clock import WatchdogClock
from holdfast.watchdog.server.connection import Farewell
from holdfast.watchdog.server.failurebook import FailureBook
from holdfast.watchdog.server.fleet import Deletions, FleetMemory
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.identity import check_job
from holdfast.watchdog.server.pastledgers import PastLedgers
from holdfast.watchdog.server.shelves import Shelves
from holdfast.watchdog.settings import NO_CLUSTER_POLICY, ClusterPolicy
from holdfast.watchdog.store.store import Fence, Store

logger = logging.getLogger(__name__)

JOBS_MAX = 1024
# Whoever may join can name a job that nobody submitted: some are started by hand. Each namespace has its own few.
BROUGHT_MAX = 16
# Launchers that lost their connection are back long before.
LEFT_S = 600.0


class Watchdog:
    """Opens what the store holds and gives every job its host. `fenced` is called when another one took over,
    `cluster` holds for every job.
    """

    def __init__(
        self,
        store: Store,
        *,
        brain: Brain,
        senses_for: SensesFor,
        fenced: Callable[[str], None],
        cluster: ClusterPolicy = NO_CLUSTER_POLICY,
    ) -> None:
        self.store = store
        self.cluster = cluster
        self.tally = Tally()
        self.shelves = Shelves()
        self.watchers: list[Callable[[JobHost], None]] = []  # told of each job in which something was decided
        self._brain = brain
        self._senses_for = senses_for
        self._fenced = fenced
        self._hosts: dict[str, JobHost] = {}
        self._started = False
        self._store_asked = False
        self._store_trouble: str | None = None
        self.store_replicas: int | None = None

    def start(self, fence: Fence | None = None) -> None:
        """Go on where an earlier run ended, with the fence given, or claimed now.

        Raises Unavailable, Damaged, Fenced; it may be called again after Unavailable, and begins anew then.
        """
        self._fence = self.store.claim() if fence is None else fence
        self.fleet = FleetMemory(self.store, self._fence, self.cluster)
        self.failures = FailureBook(self.store, self._fence)
        self._deletions = Deletions(self.store, self._fence)
        self.past_ledgers = PastLedgers(self.store, self._fence)
        jobs = [self._job(name) for name in self.store.jobs()]
        for job in jobs:
            job.restore()
        self.clock = WatchdogClock(not_before=max((job.last_at for job in jobs), default=0.0))
        self._started_at = self.clock.now()
        try:
            for job in jobs:
                self._hosted(job).start(self.cluster)
        except Unavailable:
            # Let go of the jobs that were resumed before the store went away. Nobody is connected yet.
            for host in self._hosts.values():
                host.dismiss(Farewell(WSCloseCode.TRY_AGAIN_LATER, "this watchdog begins anew"))
            self._hosts.clear()
            raise
        for job in jobs:
            logger.info("job resumed job=%s offset=%d phase=%s", job.name, job.offset, job.state.phase.value)
        self._started = True
        self.failures.book(self._hosts.values(), self.clock.now())
        for host in self._hosts.values():
            self.fleet.tell(host, self.clock.now())
            self.failures.tell(host)

    def stop(self) -> None:
        """Leave everything as it is, ready for the next start."""
        if self._started:
            with suppress(Fenced):  # another one leads, and books what it sees
                self.failures.book(self._hosts.values(), self.clock.now())
        for host in self._hosts.values():
            host.stop()
        self.store.close()

    def brought(self, name: str) -> JobHost:
        """The host of a job that a launcher or an agent names. Raises InvalidInput, Unavailable, Damaged, Fenced.

        A job is there because somebody submitted it. Others are few, and none is one that was just deleted: where
        a namespace has too many that launchers had brought, the oldest that they left is forgotten.
        """
        if (known := self._hosts.get(name)) is not None:
            return known
        check_job(name)
        if self._deletions.is_recent(name, self.clock.now()):
            raise Unavailable(f"job {name} was deleted; submit it to run it again")
        namespace = namespace_of(name)
        of_namespace = [each for each in self._hosts.values() if namespace_of(each.job.name) == namespace]
        brought = [each for each in of_namespace if not each.is_submitted]
        if len(brought) >= BROUGHT_MAX:
            over = [each for each in brought if self._is_over(each)]
            if not over:
                raise Unavailable(
                    f"job {name} was not submitted, and namespace {namespace} has {BROUGHT_MAX} such jobs "
                    "already; submit it, or delete others"
                )
            oldest = min(over, key=lambda each: each.job.last_at)
            logger.info("job forgotten to make room job=%s for=%s", oldest.job.name, name)
            self._drop(oldest)
        return self.host(name)

    def _is_over(self, host: JobHost) -> bool:
        """Whether it ended, or everybody left it. After a start everybody has time to come back."""
        if host.launchers or host.job.state.ended_at is not None:
            return not host.launchers
        if host.agents or host.operators:
            return False
        return self.clock.now() > max(host.job.last_at, self._started_at) + LEFT_S

    def host(self, name: str) -> JobHost:
        """The host of a job; a new one for a new name. Raises InvalidInput, Unavailable.

        A namespace has at most as many jobs as it leaves room for.
        """
        if (known := self._hosts.get(name)) is not None:
            return known
        self._deletions.submitted(name)
        check_job(name)
        free = JOBS_MAX - len(self._hosts)
        if free <= 0:
            raise Unavailable(f"this watchdog has {JOBS_MAX} jobs already; delete some that are over")
        namespace = namespace_of(name)
        own = sum(namespace_of(each) == namespace for each in self._hosts)
        if own >= free:
            raise Unavailable(
                f"namespace {namespace} has {own} jobs, and of {JOBS_MAX} that this watchdog takes {free} are "
                "left: no namespace may have more; delete some of its jobs that are over"
            )
        return self._hosted(self._job(name))

    def known(self, name: str) -> JobHost | None:
        """The job's host, None when there is no such job."""
        return self._hosts.get(name)

    def hosts(self) -> Iterator[JobHost]:
        """Every job's host, by name."""
        return (self._hosts[name] for name in sorted(self._hosts))

    def fleet_report(self) -> FleetReport:
        """What all jobs together know of the fleet, as of now. Raises Fenced."""
        now = self.clock.now()
        self.failures.book(self._hosts.values(), now)
        return FleetReport(now, self.failures.gatherings)

    def forget(self, name: str) -> None:
        """Drop a job that is gone for good; its peers are told to go. Raises Unavailable, Damaged, Fenced."""
        host = self._hosts.get(name)
        if host is not None:
            self._deletions.note(name, self.clock.now())  # first: who is cut off here has deleted nothing yet
            self._drop(host)

    def _drop(self, host: JobHost) -> None:
        name = host.job.name
        self.past_ledgers.keep(host.ledger())
        self.store.forget(lastseen.name_of(name), fence=self._fence)
        self.store.forget(name, fence=self._fence)
        del self._hosts[name]
        self.shelves.forget(name)
        self.failures.forget(name)
        host.dismiss(Farewell(WSCloseCode.GOING_AWAY, f"job {name} is gone"))

    @property
    def leading(self) -> Fence | None:
        """The fence under which this watchdog decides, None while it only stands by."""
        return self._fence if self._started else None

    @property
    def standing(self) -> Standing:
        """Its part among the replicas."""
        if self._started:
            return Standing.LEADING
        return Standing.STANDBY if self._store_asked else Standing.STARTING

    def note_store(self, trouble: str | None) -> None:
        """Whether the store answers, told by whoever asks it when no job does."""
        self._store_asked = True
        self._store_trouble = trouble
        if trouble is not None:
            self.store_replicas = None

    def note_replicas(self, count: int | None) -> None:
        """How many replicas of the store keep up; None where there are to be none and when it is not known."""
        self.store_replicas = count

    def trouble(self) -> str | None:
        """Why decisions cannot be recorded, None while they can."""
        if self.standing is Standing.STARTING:
            return "the store has not been asked yet"
        return self._store_trouble or next(
            (host.job.trouble for host in self._hosts.values() if host.job.trouble and not host.job.stopped), None
        )

    def _job(self, name: str) -> Job:
        return Job(name, store=self.store, fence=self._fence, brain=self._brain, senses_for=self._senses_for)

    def _hosted(self, job: Job) -> JobHost:
        host = JobHost(
            job,
            clock=self.clock,
            tally=self.tally,
            shelves=self.shelves,
            fenced=self._fenced,
            decided=self._learn,
        )
        self._hosts[job.name] = host
        return host

    def _learn(self, host: JobHost, effects: tuple[Effect, ...]) -> None:
        """What one job found out about a node concerns all; a job that is told something decides anew."""
        if not self._started:
            return
        now = self.clock.now()
        # Those of jobs by hand do not count beside others: whoever brings one invents as many as he likes.
        known = [each for each in self._hosts.values() if each.is_submitted] or self._hosts.values()
        nodes = sum(len(each.job.state.members) for each in known)
        of_nodes = self.fleet.learn(host, effects, now, nodes=nodes)
        of_places = self.failures.learn(host, self._hosts.values(), effects, now)
        for each in list(self._hosts.values()) if of_nodes or of_places else [host]:
            self.fleet.tell(each, now)
            self.failures.tell(each)
        for watcher in self.watchers:
            watcher(host)


WATCHDOG = web.AppKey("watchdog", Watchdog)
