"""The durable saves of one round: captured on the training thread, stored behind its back, reported when done."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.api.checkpoint import StoredCheckpoint, told_of
from holdfast.api.errors import HoldfastError
from holdfast.api.rankrecord import Phase
from holdfast.checkpoint.capture import Capture
from holdfast.checkpoint.discovery import Found
from holdfast.checkpoint.opening import Opening, stored_as
from holdfast.checkpoint.persist import Persister, Reached, SavePoint
from holdfast.checkpoint.runport import RunPort
from holdfast.checkpoint.saver import Saver
from holdfast.checkpoint.snapshot import Snapshot

_LOG = logging.getLogger(__name__)


class StorageReport:
    """Tells the run what storage holds, as rank 0 of one round sees it. `damaged` are names that the restore has
    found damaged: they are in the storage, and nothing to go back to.
    """

    def __init__(self, run: RunPort, opening: Opening, *, uri: str, damaged: Sequence[str]) -> None:
        self._run = run
        self._round = run.assignment.round
        self._earlier = opening.number - self._round
        self._uri = uri
        self._damaged = frozenset(damaged)

    def restored(self, line: Sequence[StoredCheckpoint], step: int | None) -> None:
        """The round goes on after `step`, None: afresh. `line` is what was there when it opened the storage."""
        self._tell([each for each in line if step is not None and each.step <= step], None)

    def tidied(self, line: Sequence[Found], saved: int | None) -> None:
        """Old checkpoints have been deleted, and `line` is what stays. `saved` is the round's newest commit."""
        self._tell([stored_as(each, self._earlier) for each in line], saved)

    def _tell(self, line: Sequence[StoredCheckpoint], saved: int | None) -> None:
        there = [each for each in line if each.name not in self._damaged]
        try:
            self._run.stored(told_of(there), count=len(there), uri=self._uri, round=self._round, saved=saved)
        except HoldfastError as error:  # The next deletion tells it all again.
            _LOG.warning("what storage holds was not reported reason=%s", error)


@dataclass(frozen=True, slots=True)
class _Pending:
    """The save in flight: the request it answers, when it began, and how long training stood still for it."""

    wanted: int | None
    began_s: float
    stall_s: float


class Saving:
    """`saved_step` is the step of the checkpoint that the round has restored, None when it has restored none."""

    def __init__(
        self,
        run: RunPort,
        capture: Capture,
        persister: Persister,
        *,
        uri: str,
        saved_step: int | None,
        reached: Reached,
    ) -> None:
        self._run = run
        self._capture = capture
        self._persister = persister
        self._uri = uri
        self._reached = reached
        self._round = run.assignment.round
        self._rank = run.assignment.rank
        self._pending = _Pending(wanted=None, began_s=0.0, stall_s=0.0)
        self._saver = Saver(self._store, rank=self._rank, is_current=self._is_current, saved_step=saved_step)

    def save(self, *, step: int, batches: int, wanted: int | None = None) -> None:
        """Capture, once the save before has ended, and leave the rest to the background. Collective."""
        began_s = time.monotonic()
        self._run.check()
        self._run.phase(Phase.CHECKPOINT)
        self.wait()
        snapshot = self._capture.take(step=step, batches=batches)
        self._reached(SavePoint.STAGED)
        self._pending = _Pending(wanted=wanted, began_s=began_s, stall_s=time.monotonic() - began_s)
        self._saver.start(snapshot)

    def finish(self, *, step: int, batches: int) -> None:
        """See to it that `step` is saved; failures are tried again as often as in the loop."""
        self.wait()
        while step > (self._saver.saved_step or 0):
            self.save(step=step, batches=batches)
            self.wait()

    def wait(self) -> None:
        """Until no save is in flight. Raises as `Saver.wait` does, and what `run.check` raises."""
        self._saver.wait(self._run.check)

    def linger(self, timeout_s: float) -> None:
        self._saver.linger(timeout_s)

    def _store(self, snapshot: Snapshot) -> None:
        try:
            name = self._persister.save(snapshot)
        finally:
            self._capture.release(snapshot)
        if self._rank == 0:
            self._tell(snapshot.step, f"{self._uri}/{name}")
            self._persister.tidy()

    def _tell(self, step: int, uri: str) -> None:
        pending = self._pending
        took_s = time.monotonic() - pending.began_s
        try:
            self._run.committed(
                step, uri, round=self._round, wanted=pending.wanted, stall_s=pending.stall_s, took_s=took_s
            )
        except HoldfastError as error:  # It is committed all the same, and will be found there.
            _LOG.warning("commit not reported step=%d reason=%s", step, error)

    def _is_current(self) -> bool:
        return self._run.is_current() and self._run.assignment.round == self._round
