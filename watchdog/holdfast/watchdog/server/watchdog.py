"""All jobs of one watchdog, over one store."""

import logging
from collections.abc import Callable, Iterator

from aiohttp import web

from holdfast.api.errors import Unavailable
from holdfast.watchdog.clock import WatchdogClock
from holdfast.watchdog.job import Job
from holdfast.watchdog.senses import SensesFor
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.names import check_job
from holdfast.watchdog.server.tally import Tally
from holdfast.watchdog.store.store import Store
from holdfast.watchdog.turn import Brain

logger = logging.getLogger(__name__)

# Anybody who may join can name a job nobody submitted; this bounds what that costs.
JOBS_MAX = 1024


class Watchdog:
    """Opens what the store holds and gives every job its host. `fenced` is called when another one took over."""

    def __init__(
        self, store: Store, *, brain: Brain, senses_for: SensesFor, fenced: Callable[[str], None]
    ) -> None:
        self.store = store
        self.tally = Tally()
        self._brain = brain
        self._senses_for = senses_for
        self._fenced = fenced
        self._hosts: dict[str, JobHost] = {}

    def start(self) -> None:
        """Claim the store and go on where an earlier run ended. Raises Unavailable, Damaged."""
        self._fence = self.store.claim()
        jobs = [self._job(name) for name in self.store.jobs()]
        for job in jobs:
            job.restore()
        self.clock = WatchdogClock(not_before=max((job.last_at for job in jobs), default=0.0))
        for job in jobs:
            self._hosted(job).start()
            logger.info("job resumed job=%s offset=%d phase=%s", job.name, job.offset, job.state.phase.value)

    def stop(self) -> None:
        """Leave everything as it is, ready for the next start."""
        for host in self._hosts.values():
            host.stop()
        self.store.close()

    def host(self, name: str) -> JobHost:
        """The job's host; a new one for a new name. Raises InvalidInput, Unavailable."""
        if (known := self._hosts.get(name)) is not None:
            return known
        check_job(name)
        if len(self._hosts) >= JOBS_MAX:
            raise Unavailable(f"this watchdog has {JOBS_MAX} jobs already")
        return self._hosted(self._job(name))

    def known(self, name: str) -> JobHost | None:
        """The job's host, None when there is no such job."""
        return self._hosts.get(name)

    def hosts(self) -> Iterator[JobHost]:
        """Every job's host, by name."""
        return (self._hosts[name] for name in sorted(self._hosts))

    def trouble(self) -> str | None:
        """Why decisions cannot be recorded, None while they can."""
        return next((host.job.trouble for host in self._hosts.values() if host.job.trouble), None)

    def _job(self, name: str) -> Job:
        return Job(name, store=self.store, fence=self._fence, brain=self._brain, senses_for=self._senses_for)

    def _hosted(self, job: Job) -> JobHost:
        host = JobHost(job, clock=self.clock, tally=self.tally, fenced=self._fenced)
        self._hosts[job.name] = host
        return host


WATCHDOG = web.AppKey("watchdog", Watchdog)
