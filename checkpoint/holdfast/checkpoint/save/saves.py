"""What a round keeps of its state, and when: checkpoints in the storage, snapshots in the nodes' memory."""

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence

from holdfast.api.checkpoint import StoredCheckpoint, told_of
from holdfast.api.errors import Fenced, HoldfastError
from holdfast.api.rankrecord import Phase
from holdfast.checkpoint.capture.capture import Capture
from holdfast.checkpoint.capture.image import Snapshot
from holdfast.checkpoint.capture.tier import SETTLED_AFTER, MemoryTier
from holdfast.checkpoint.commit.discovery import Found
from holdfast.checkpoint.errors import SaveFailed, SavingStopped
from holdfast.checkpoint.restore.opening import Opening, stored_as
from holdfast.checkpoint.runport import RunPort
from holdfast.checkpoint.save.persister import Persister, Reached, SavePoint

_LOG = logging.getLogger(__name__)

FAILURES_MAX = 3  # One may be a passing fault of the storage; three in a row are a state.

_POLL_S = 0.05  # How often a wait asks whether the round still runs.


class SavePolicy:
    """Says after each step what is due. Belongs to the training thread.

    `memory` None: no snapshots in memory; `save` None: no storage. Saved are the steps that one of `every_steps`
    divides, the last one, and what the watchdog asks for.
    """

    def __init__(
        self,
        run: RunPort,
        capture: Capture,
        *,
        memory: MemoryTier | None,
        save: "Save | None",
        every_steps: Collection[int],
    ) -> None:
        self._run = run
        self._capture = capture
        self._memory = memory
        self._save = save
        self._every_steps = every_steps
        self._steps = 0

    def completed(self, *, step: int, batches: int) -> bool:
        """The loop has completed `step`: keep what is due. Whether anything was. All ranks alike."""
        self._steps += 1
        if self._save is not None:
            wanted = self._run.save_due(step)
            if wanted is not None or any(step % each == 0 for each in self._every_steps):
                # What is captured for the storage is a snapshot in memory as well, and the ranks agree on both.
                self._save.begin(step=step, batches=batches, wanted=wanted)
                return True
        if self._memory is None:
            return False
        # Where nothing is saved, nobody else finds that replicas are none any more.
        is_power = self._save is None and self._steps & (self._steps - 1) == 0
        if is_agreed := self._steps in (1, SETTLED_AFTER) or is_power:
            self._run.phase(Phase.CHECKPOINT)
            if self._save is not None:
                self._save.wait()  # Nothing else is said among the ranks meanwhile.
            self._capture.agree(step=step)
        if is_due := self._memory.schedule.is_due(step):
            self._run.phase(Phase.CHECKPOINT)
            self._capture.remember(step=step, batches=batches)
        return is_agreed or is_due


class Lived:
    """What a thread of the run works for: the round in which it was begun, or, of a replica group that goes on
    without leaving anything, all those that it is in. Any thread.
    """

    def __init__(self, run: RunPort) -> None:
        self._run = run
        self._stay = run.assignment.inside().round
        self.entered = run.assignment.round
        """The number of the round in which this was made."""

    def is_current(self) -> bool:
        """Whether that goes on."""
        return self._run.is_current() and self._run.assignment.inside().round == self._stay

    @property
    def round(self) -> int:
        """The number of the round in which what is said now counts."""
        return self._run.assignment.round if self.is_current() else self.entered


class Save:
    """The durable saves of one round: captured on the training thread, stored by another, reported when done. One
    is in flight; failures are counted and not hidden. Every method belongs to the training thread.

    `saved_step` is the step of the checkpoint that the round has restored, None when it has restored none.
    """

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
        self._saved_step = saved_step
        self._reached = reached
        self._lived = Lived(run)
        self._rank = run.assignment.inside().rank
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._failures = 0

    def begin(self, *, step: int, batches: int, wanted: int | None = None) -> None:
        """Capture, once the save before has ended, and leave the rest to the background. Collective.

        `wanted` is the request that it answers. Raises as `wait` and `Capture.take` do.
        """
        began_s = time.monotonic()
        self._run.check()
        self._run.phase(Phase.CHECKPOINT)
        self.wait()
        snapshot = self._capture.take(step=step, batches=batches)
        self._reached(SavePoint.STAGED)
        stall_s = time.monotonic() - began_s
        self._thread = threading.Thread(
            target=self._store,
            args=(snapshot, wanted, began_s, stall_s),
            name="holdfast-checkpoint",
            daemon=True,
        )
        self._thread.start()

    def wait(self) -> None:
        """Until no save is in flight.

        Raises what `run.check` raises, Fenced when a newer round has taken over the directory, SavingStopped when
        FAILURES_MAX saves in a row have failed. A single failure is only logged.
        """
        if self._thread is None:
            return
        while self._thread.is_alive():
            self._thread.join(_POLL_S)
            self._run.check()
        self._thread = None
        if isinstance(self._error, Fenced):
            raise self._error
        if self._failures >= FAILURES_MAX:
            raise SavingStopped(f"{self._failures} checkpoints in a row failed: {self._error}") from self._error

    def finish(self, *, step: int, batches: int) -> None:
        """See to it that `step`, the last one, is saved; failures are tried again as often as in the loop."""
        self.wait()
        while step > (self._saved_step or 0):
            self.begin(step=step, batches=batches)
            self.wait()

    def linger(self, timeout_s: float) -> None:
        """Give the save in flight some time to end, but only while the round still runs."""
        while self._thread is not None and self._thread.is_alive() and self._lived.is_current() and timeout_s > 0:
            self._thread.join(_POLL_S)
            timeout_s -= _POLL_S

    def _enclosures(self, step: int) -> Mapping[str, bytes]:
        """What rank 0 puts beside the state. A checkpoint without it is as good for a restore."""
        if self._rank != 0:
            return {}
        try:
            return self._run.enclosures(step)
        except Exception:
            _LOG.exception("nothing is enclosed with the checkpoint step=%d", step)
            return {}

    def _store(self, snapshot: Snapshot, wanted: int | None, began_s: float, stall_s: float) -> None:
        """What the thread does."""
        step = snapshot.step
        try:
            try:
                name = self._persister.save(snapshot, self._enclosures(step))
            finally:
                self._capture.release()
            if self._rank == 0:
                try:
                    self._run.committed(
                        step,
                        f"{self._uri}/{name}",
                        round=self._lived.round,
                        wanted=wanted,
                        stall_s=stall_s,
                        took_s=time.monotonic() - began_s,
                    )
                except HoldfastError as error:  # It is committed all the same, and will be found there.
                    _LOG.warning("commit not reported step=%d reason=%s", step, error)
                self._persister.tidy()
        except Exception as error:  # A thread has nobody above it; `wait` hands the error on.
            self._error = error
            self._failures += 1
            # The end of a round ends its saves; that is no news. What all ranks know, rank 0 says.
            if not self._lived.is_current():
                _LOG.info("checkpoint given up with its round step=%d reason=%s", step, error)
            elif self._rank == 0 or not isinstance(error, SaveFailed | Fenced):
                _LOG.warning(
                    "checkpoint not saved step=%d rank=%d failures=%d reason=%s",
                    step,
                    self._rank,
                    self._failures,
                    error,
                )
        else:
            self._error = None
            self._failures = 0
            self._saved_step = step


class StorageReport:
    """Tells the run what storage holds, as rank 0 of one round sees it. `damaged` are names that the restore has
    found damaged: they are in the storage, and nothing to go back to.
    """

    def __init__(self, run: RunPort, opening: Opening, *, uri: str, damaged: Sequence[str]) -> None:
        self._run = run
        self._lived = Lived(run)
        self._earlier = opening.number - self._lived.entered
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
            self._run.stored(told_of(there), count=len(there), uri=self._uri, round=self._lived.round, saved=saved)
        except HoldfastError as error:  # The next deletion tells it all again.
            _LOG.warning("what storage holds was not reported reason=%s", error)
