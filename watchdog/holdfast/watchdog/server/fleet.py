"""What concerns all jobs, kept in the store beside them: what is known of nodes, and who was deleted lately.

Each has a name that no job can have. The memory of nodes learns from every job's incidents, and tells every job
whom to keep away from. It is only a snapshot: what it says was derived from incidents that are journaled, and what
it made jobs do is in their journals.
"""

import logging
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from holdfast.api.decoding import decode_msgpack
from holdfast.api.errors import Damaged, Malformed, Unavailable
from holdfast.api.event import NodeReputed
from holdfast.api.policy import CordonOn
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.nodes import is_news_of_repute
from holdfast.watchdog.brain.reputation import Fleet, judged, marked, namespace_of, pardoned, repute_of
from holdfast.watchdog.brain.step import Effect, IncidentClosed, IncidentOpened, IncidentUpdated, Pardon
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.settings import ClusterPolicy
from holdfast.watchdog.store.store import START, Fence, Snapshot, Store

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A namespace has no dot.
NODES: Final = "holdfast.dev/nodes"
# Marks fade over weeks.
JUDGE_EVERY_S = 600.0
ENDED = (JobPhase.SUCCEEDED, JobPhase.FAILED)

DELETED: Final = "holdfast.dev/deleted"
# What a pod's grace may take, and more.
FORGOTTEN_S: Final = 600.0
KEPT_OF_NAMESPACE: Final = 1024


def recalled(store: Store, name: str, kind: type[T], what: str) -> T | None:
    """What an earlier run kept, None when there is nothing that can be read. Raises Unavailable."""
    try:
        snapshot = store.load(name)
        return None if snapshot is None else decode_msgpack(snapshot.state, kind)
    except (Damaged, Malformed) as error:
        logger.warning("%s cannot be read reason=%s", what, error)
        return None


class FleetMemory:
    """Takes up what an earlier run knew; what cannot be read is forgotten: it is known again in time.

    Written from one thread. Raises Unavailable when made.
    """

    def __init__(self, store: Store, fence: Fence, cluster: ClusterPolicy) -> None:
        self._cluster = cluster
        self._store = store
        self._fence = fence
        self._fleet = recalled(store, NODES, Fleet, "what is known of nodes") or Fleet()
        self._judged_at = float("-inf")

    def told_of(self, node: str, now: float, job: str) -> str:
        """What is held against a node, in words for this job; empty when nothing."""
        known = repute_of(self._fleet, node, now, job)
        return f"{known.reason} (score {known.score:.1f})" if known.score else ""

    @property
    def quarantined(self) -> tuple[str, ...]:
        """The nodes that all jobs are to keep away from, sorted."""
        return self._fleet.quarantined

    def learn(self, host: JobHost, effects: Iterable[Effect], now: float, *, nodes: int) -> bool:
        """Take in what a job decided. True when jobs are to be told something new."""
        before = self._fleet
        by_word = self._cluster.cordon_on is CordonOn.ANYTHING
        namespace = None if by_word else namespace_of(host.job.name)
        for effect in effects:
            match effect:
                case IncidentOpened() | IncidentUpdated() | IncidentClosed():
                    self._fleet = marked(self._fleet, effect.incident, by_word=by_word)
                case Pardon(node=node):
                    self._fleet = pardoned(self._fleet, node, now, namespace=namespace)
                case _:
                    pass
        if self._fleet is before and now < self._judged_at + JUDGE_EVERY_S:
            return False
        self._judged_at = now
        self._fleet = judged(self._fleet, now, nodes=nodes)
        if self._fleet is not before:
            try:
                state = msgspec.msgpack.encode(self._fleet)
                self._store.save(NODES, Snapshot(START, now, state), fence=self._fence)
            except Unavailable as error:
                logger.warning("what is known of nodes is not kept now reason=%s", error)
        return (self._fleet.quarantined, self._fleet.among) != (before.quarantined, before.among)

    def tell(self, host: JobHost, now: float) -> None:
        """Let a job know whom to keep away from, and whom no more."""
        if host.job.behind or host.job.state.policy is None or host.job.state.phase in ENDED:
            return  # told with what it next decides
        # Asked of the job each time: another may have taken its name, or what was to leave a node may stay.
        quarantined = self._fleet.kept_from(host.job.name)
        state = host.job.state
        leaving = {each.node for each in state.departures if each.node is not None}
        for node in sorted({*quarantined, *state.reputed, *leaving}):
            if is_news_of_repute(host.job.state, node, quarantined=node in quarantined):
                repute = repute_of(self._fleet, node, now, host.job.name)
                host.record(NodeReputed(node, repute.quarantined, repute.score, repute.reason))


class Deletions:
    """Which jobs were deleted a short time ago: their pods and agents go on calling until they are gone too.

    Neither a restart nor another leader forgets a deletion. Written from one thread. Raises Unavailable when made.
    """

    def __init__(self, store: Store, fence: Fence) -> None:
        self._store = store
        self._fence = fence
        known = recalled(store, DELETED, dict[str, float], "which jobs were deleted")
        self._at = known or {}  # by job, the oldest first

    def note(self, job: str, now: float) -> None:
        """The job is to be deleted now. Raises Unavailable, Fenced, and nothing is noted then."""
        recent = {each: at for each, at in self._at.items() if each != job and now < at + FORGOTTEN_S}
        of_namespace = [each for each in recent if namespace_of(each) == namespace_of(job)]
        for oldest in of_namespace[: len(of_namespace) - KEPT_OF_NAMESPACE + 1]:
            del recent[oldest]
        recent[job] = now
        self._store.save(DELETED, Snapshot(START, now, msgspec.msgpack.encode(recent)), fence=self._fence)
        self._at = recent

    def submitted(self, job: str) -> None:
        """Somebody wants the job again. Nothing is written: a job that is there is not asked about."""
        self._at.pop(job, None)

    def is_recent(self, job: str, now: float) -> bool:
        """Whether no launcher and no agent may bring the job back."""
        return now < self._at.get(job, float("-inf")) + FORGOTTEN_S
