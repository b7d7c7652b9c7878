"""Which jobs were deleted a short time ago: their pods and agents go on calling until they are gone too.

It is kept in the store beside the jobs, under a name that no job can have: neither a restart nor another leader
forgets a deletion.
"""

import logging
from typing import Final

import msgspec

from holdfast.api.decoding import decode_msgpack
from holdfast.api.errors import Damaged, Malformed
from holdfast.watchdog.brain.reputation import namespace_of
from holdfast.watchdog.store.store import START, Fence, Snapshot, Store

logger = logging.getLogger(__name__)

# A namespace has no dot.
NAME: Final = "holdfast.dev/deleted"
# What a pod's grace may take, and more.
FORGOTTEN_S: Final = 600.0
KEPT_OF_NAMESPACE: Final = 1024


class Deletions:
    """Written from one thread."""

    def __init__(self, store: Store, fence: Fence) -> None:
        self._store = store
        self._fence = fence
        self._at: dict[str, float] = {}  # by job, the oldest first

    def recall(self) -> None:
        """Take up what an earlier run knew. Raises Unavailable. What cannot be read is told, and not known."""
        try:
            snapshot = self._store.load(NAME)
            if snapshot is not None:
                self._at = decode_msgpack(snapshot.state, dict[str, float])
        except (Damaged, Malformed) as error:
            logger.warning("which jobs were deleted cannot be read reason=%s", error)

    def note(self, job: str, now: float) -> None:
        """The job is to be deleted now. Raises Unavailable, Fenced, and nothing is noted then."""
        recent = {each: at for each, at in self._at.items() if each != job and now < at + FORGOTTEN_S}
        of_namespace = [each for each in recent if namespace_of(each) == namespace_of(job)]
        for oldest in of_namespace[: len(of_namespace) - KEPT_OF_NAMESPACE + 1]:
            del recent[oldest]
        recent[job] = now
        self._store.save(NAME, Snapshot(START, now, msgspec.msgpack.encode(recent)), fence=self._fence)
        self._at = recent

    def submitted(self, job: str) -> None:
        """Somebody wants the job again. Nothing is written: a job that is there is not asked about."""
        self._at.pop(job, None)

    def is_recent(self, job: str, now: float) -> bool:
        """Whether no launcher and no agent may bring the job back."""
        return now < self._at.get(job, float("-inf")) + FORGOTTEN_S
