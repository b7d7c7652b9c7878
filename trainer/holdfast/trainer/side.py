"""The side thread: it beats, listens to the launcher, and frees the training thread when its round is over.

It is the only other thread of a run. It never touches the training state: all it does to the training thread is
to close the connections that thread waits on.
"""

import os
import select
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from holdfast.trainer.control import Control, ControlClosed
from holdfast.trainer.host import Launcher

BEAT_INTERVAL_S = 0.1
ABORT_INTERVAL_S = 0.01
"""How often a training thread that has not left an ended round is freed again: what it was just creating when
the round ended (a store, connections to peers) can make it wait once more."""


class SideThread:
    """Runs while the `with` block does. `beat` is called every `BEAT_INTERVAL_S`."""

    def __init__(
        self, beat: Callable[[], None], *, control: Control | None = None, launcher: Launcher | None = None
    ) -> None:
        self._beat = beat
        self._control = control
        self._launcher = launcher
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="holdfast-side", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._stop)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        if self._control is not None:
            poll.register(self._control, select.POLLIN)
        next_beat = time.monotonic()
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(self._pause_s(next_beat) * 1000)}
            if self._stop in ready:
                return
            if ready:
                self._listen(poll)
            self._free_training_thread()
            if time.monotonic() >= next_beat:
                self._beat()
                next_beat = time.monotonic() + BEAT_INTERVAL_S

    def _pause_s(self, next_beat: float) -> float:
        until_beat = max(0.0, next_beat - time.monotonic())
        stay = self._launcher.stay() if self._launcher else None
        return min(until_beat, ABORT_INTERVAL_S) if stay is not None and stay.is_over else until_beat

    def _listen(self, poll: select.poll) -> None:
        assert self._control is not None
        assert self._launcher is not None
        try:
            for message in self._control.receive():
                self._launcher.take(message)
        except ControlClosed as error:
            poll.unregister(self._control)
            self._launcher.lose(str(error))

    def _free_training_thread(self) -> None:
        stay = self._launcher.stay() if self._launcher else None
        if stay is not None and stay.is_over:
            stay.group.abort()
