"""Holdfast's checkpoint library as a training script uses it. Nothing else of the bench knows the library."""

import itertools
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from holdfast.checkpoint import Checkpointer, Standalone
from holdfast.checkpoint.save.persister import SavePoint
from saves.subject import Subject

POINTS: Final = tuple(point.value for point in SavePoint)
_PATIENCE_S: Final = 300.0
_EVERY: Final = 10**6  # More than are ever kept: what is not needed the bench deletes between its samples.


class Bell(Standalone):
    """Asks for a save when it is told to, and rings when one is committed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.wanted: int | None = None
        self.rung = threading.Event()
        self.rung_at = 0.0
        self.restored_step: int | None = None

    def save_due(self, step: int, /) -> int | None:  # type: ignore[override]
        wanted, self.wanted = self.wanted, None
        return wanted

    def committed(self, step: int, uri: str, /, **told: object) -> None:
        self.rung_at = time.perf_counter()
        self.rung.set()

    def restored(self, step: int | None, *told: object, **more: object) -> None:
        self.restored_step = step


class Ours:
    """A training loop of steps that do nothing, with a `Checkpointer` around it."""

    def __init__(self, subject: Subject, folder: Path, *, reached: Callable[[str], object] | None = None) -> None:
        self._folder = folder
        self._run = Bell(folder)
        self._checkpointer = Checkpointer(
            self._run,
            model=subject.model,
            optimizer=subject.optimizer,
            keep=_EVERY,
            reached=reached or (lambda point: None),
        )
        self._loop: Iterator[tuple[int, int]] = self._checkpointer.steps(itertools.count())
        self._saves = 0

    def load(self) -> int | None:
        """What happens before the first step; the step it restored."""
        next(self._loop)
        return self._run.restored_step

    def step(self) -> None:
        """A step that saves nothing."""
        next(self._loop)

    def save(self) -> float:
        """End a step with a save; seconds that the training loop stood still for it."""
        self._saves += 1
        self._run.rung.clear()
        self._run.wanted = self._saves
        began = time.perf_counter()
        next(self._loop)
        return time.perf_counter() - began

    def is_committed(self) -> bool:
        """For rank 0."""
        return self._run.rung.is_set()

    def wait(self) -> float:
        """On rank 0: wait until the save is durable and visible, which was at the returned reading of the clock.

        Nobody tells the other ranks; there it returns at once. Raises TimeoutError when nothing is committed.
        """
        if self._run.assignment.rank != 0:
            return time.perf_counter()
        if not self._run.rung.wait(_PATIENCE_S):
            raise TimeoutError(f"no commit in {self._folder}")
        return self._run.rung_at

    def close(self) -> None:
        self._loop.close()  # type: ignore[attr-defined]
        self._checkpointer.close()


def checkpoints(folder: Path) -> list[Path]:
    """The committed ones, oldest first."""
    return sorted(folder.glob("step-????????"))


def keep_newest(folder: Path) -> None:
    """Delete all committed checkpoints but the newest."""
    for each in checkpoints(folder)[:-1]:
        shutil.rmtree(each)
