"""What the whole fleet fails by, kept in the store beside the jobs: it outlives each of them.

It learns from every job's incidents and from how long its rounds had their nodes. Like the memory of nodes it is
only a snapshot of what is journaled elsewhere: a watchdog that dies loses some GPU time, that since the last
failure of any job at most, and no failure that it had told of.
"""

import logging
from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.api.errors import Unavailable
from holdfast.api.event import FaultsGathered
from holdfast.api.place import Gathering
from holdfast.api.round import Round
from holdfast.watchdog.brain.failures import Failures, exposure, failed, located, trained
from holdfast.watchdog.brain.gatherings import behind, gatherings
from holdfast.watchdog.brain.step import Effect, IncidentClosed, IncidentOpened, IncidentUpdated
from holdfast.watchdog.server.fleet import ENDED, JUDGE_EVERY_S, recalled
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.store.store import START, Fence, Snapshot, Store

logger = logging.getLogger(__name__)

# A namespace has no dot.
FAILURES: Final = "holdfast.dev/failures"


class Followed(msgspec.Struct):
    """The round of a job that has its nodes now, booked up to `since`."""

    round: Round
    since: float


class FailureBook:
    """Takes up what an earlier run knew; what cannot be read is forgotten.

    Written from one thread. Raises Unavailable when made.
    """

    def __init__(self, store: Store, fence: Fence) -> None:
        self._store = store
        self._fence = fence
        self._known = recalled(store, FAILURES, Failures, "what the fleet failed by") or Failures()
        self._followed: dict[str, Followed] = {}
        self._gatherings: tuple[Gathering, ...] = ()
        self._judged_at = float("-inf")

    @property
    def gatherings(self) -> tuple[Gathering, ...]:
        """The places behind which faults gather, the least likely by chance first."""
        return self._gatherings

    @property
    def failures(self) -> Failures:
        """All that is kept, as of the last `book`."""
        return self._known

    def learn(self, host: JobHost, hosts: Iterable[JobHost], effects: Iterable[Effect], now: float) -> bool:
        """Take in what a job decided, one of all `hosts`. True when jobs are to be told something new."""
        before = self._known
        for effect in effects:
            if isinstance(effect, IncidentOpened | IncidentUpdated | IncidentClosed):
                self._known = failed(self._known, effect.incident, host.job.state.places)
        if self._known is before and now < self._judged_at + JUDGE_EVERY_S:
            self._follow(host, now)
            return False
        told = self._gatherings
        self.book(hosts, now)
        return self._gatherings != told

    def book(self, hosts: Iterable[JobHost], now: float) -> None:
        """Bring the GPU time of all jobs up to now, judge the places by it, and keep both. Raises Fenced."""
        for host in hosts:
            self._follow(host, now, anew=True)
        self._judged_at = now
        self._gatherings = gatherings(located(self._known, now), exposure(self._known, now), now)
        try:
            state = msgspec.msgpack.encode(self._known)
            self._store.save(FAILURES, Snapshot(START, now, state), fence=self._fence)
        except Unavailable as error:
            logger.warning("what the fleet failed by is not kept now reason=%s", error)

    def forget(self, job: str) -> None:
        """The job is gone; what it failed by is not."""
        self._followed.pop(job, None)

    def tell(self, host: JobHost) -> None:
        """Let a job know of the places behind which faults gather and it has nodes."""
        state = host.job.state
        if host.job.behind or state.policy is None or state.phase in ENDED:
            return  # told with what it next decides
        places = {place for known in state.places.values() for place in known}
        concerned = behind(self._gatherings, places)
        if concerned != state.gatherings:
            host.record(FaultsGathered(concerned))

    def _follow(self, host: JobHost, now: float, *, anew: bool = False) -> None:
        """Book the GPU time of the round that had the job's nodes, when it is over; `anew`: also before."""
        state, known = host.job.state, self._followed.get(host.job.name)
        has_nodes = isinstance(state.desired, Round) and state.phase not in ENDED
        running = state.round if has_nodes else None
        if known is not None and (anew or running is not known.round):
            nodes = (state.places.get(share.node, ()) for share in known.round.ranks)
            gpus = known.round.ranks[0].local_size if known.round.ranks else 0
            self._known = trained(self._known, known.since, now, gpus, nodes)
            known = None
        if running is None:
            self._followed.pop(host.job.name, None)
        elif known is None:
            self._followed[host.job.name] = Followed(running, now)
