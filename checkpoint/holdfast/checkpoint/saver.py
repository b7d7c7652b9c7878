"""Saving behind the training loop's back: one save in flight, failures counted and not hidden."""

import logging
import threading
from collections.abc import Callable

from holdfast.api.errors import Fenced
from holdfast.checkpoint.errors import SaveFailed, SavingStopped
from holdfast.checkpoint.snapshot import Snapshot

_LOG = logging.getLogger(__name__)

FAILURES_MAX = 3  # One may be a passing fault of the storage; three in a row are a state.
_LOOK_UP_S = 0.05  # How often a wait asks whether the round still runs.


class Saver:
    """`start` and `wait` belong to the training thread."""

    def __init__(
        self,
        save: Callable[[Snapshot], None],
        *,
        rank: int,
        is_current: Callable[[], bool],
        saved_step: int | None = None,
    ) -> None:
        self._save = save
        self._rank = rank
        self._is_current = is_current
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._failures = 0
        self.saved_step = saved_step

    def start(self, snapshot: Snapshot) -> None:
        """Save `snapshot` in the background. The save before must have been waited for."""
        assert self._thread is None
        self._thread = threading.Thread(
            target=self._run, args=(snapshot,), name="holdfast-checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self, check: Callable[[], object]) -> None:
        """Wait until no save is in flight. `check` is called while waiting and may raise to give up.

        Raises Fenced when a newer round has taken over the directory, SavingStopped when FAILURES_MAX saves in
        a row have failed. A single failure is only logged.
        """
        if self._thread is None:
            return
        while self._thread.is_alive():
            self._thread.join(_LOOK_UP_S)
            check()
        self._thread = None
        if isinstance(self._error, Fenced):
            raise self._error
        if self._failures >= FAILURES_MAX:
            raise SavingStopped(f"{self._failures} checkpoints in a row failed: {self._error}") from self._error

    def linger(self, timeout_s: float) -> None:
        """Give the save in flight some time to end, but only while the round still runs."""
        while self._thread is not None and self._thread.is_alive() and self._is_current() and timeout_s > 0:
            self._thread.join(_LOOK_UP_S)
            timeout_s -= _LOOK_UP_S

    def _run(self, snapshot: Snapshot) -> None:
        try:
            self._save(snapshot)
        except Exception as error:  # A thread has nobody above it; `wait` hands the error on.
            self._error = error
            self._failures += 1
            self._log(snapshot.step, error)
        else:
            self._error = None
            self._failures = 0
            self.saved_step = snapshot.step

    def _log(self, step: int, error: Exception) -> None:
        """The end of a round ends its saves; that is no news. What all ranks know, rank 0 says."""
        if not self._is_current():
            _LOG.info("checkpoint given up with its round step=%d reason=%s", step, error)
        elif self._rank == 0 or not isinstance(error, SaveFailed | Fenced):
            _LOG.warning(
                "checkpoint not saved step=%d rank=%d failures=%d reason=%s",
                step,
                self._rank,
                self._failures,
                error,
            )
