"""The checkpoints that a framework writes for itself, as all ranks of a round know and use them."""

import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from holdfast.api.checkpoint import StoredCheckpoint, all_finite, told_of
from holdfast.api.errors import Damaged, Fenced
from holdfast.checkpoint.errors import NothingToRestore
from holdfast.integrations.choosing import behind, choice, common, owned, rewind_goal, superseded, surplus
from holdfast.integrations.life import check_owner, take_over
from holdfast.integrations.marks import Mark, Marked, begin_writing, give_up, listing, write_mark
from holdfast.trainer import Run

logger = logging.getLogger(__name__)

T = TypeVar("T")


def told_by_all(mine: T) -> list[T]:
    """What each rank says, in the order of ranks. Collective."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [mine]
    told: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    return told  # type: ignore[return-value]  # each of them has been filled


class CheckpointFolders:
    """Folders `prefix` and a step in `directory`. All methods are collective and for the training thread.

    `marks_here`: this process marks what was saved; one process for each file system that the ranks see.
    """

    def __init__(self, run: Run, directory: Path, *, prefix: str, marks_here: bool) -> None:
        self._run = run
        self._directory = directory
        self._prefix = prefix
        self._marks_here = marks_here
        self._line_ends: int | None = None  # the newest step of the history that goes on
        self.newest: int | None = None
        """The step that was saved last in this round."""

    def folder(self, step: int) -> Path:
        """Where the checkpoint of `step` lies."""
        return self._directory / f"{self._prefix}{step}"

    def choose(
        self, *, begins_with: bool = False, takes_unknown: bool = False
    ) -> tuple[Marked | None, int | None]:
        """The complete checkpoint that this round goes on from, the same on all ranks; None: none of these.

        `begins_with`: the script names one that it wants to begin with, which counts until this life of the job
        has saved one. `takes_unknown`: one of which nobody knows whether it is complete is better than none; its
        step is the second answer then. Raises NothingToRestore when the job has something to go back to and it is
        not there.
        """
        here = listing(self._directory, self._prefix)
        told = told_by_all(here)
        there, part = common([each.complete for each in told]), self._run.assignment
        if part.rank == 0:
            for why in here.incomplete:
                logger.warning("a checkpoint is passed over reason=%s", why)
        if begins_with and not owned(there, part.restore.owner):
            return None, None
        try:
            chosen = choice(there, part.restore)
        except Damaged as error:
            raise NothingToRestore(f"{self._directory}: {error}") from error
        unknown = told[0].unknown
        if chosen is not None or not unknown:
            return chosen, None
        if takes_unknown:
            return None, unknown[0]
        if part.rank == 0:
            logger.warning(
                "checkpoints without a mark are passed over: they were saved without Holdfast, and are begun with"
                " where the script names one directory=%s newest=%d",
                self._directory,
                unknown[0],
            )
        return None, None

    def begin(self, step: int | None) -> None:
        """Training goes on after `step`, None: afresh. What lies behind it is of a history that is given up.

        Raises Fenced when another job has taken over the directory since this one saved there.
        """
        found, owner = listing(self._directory, self._prefix).complete, self._run.assignment.restore.owner
        has_saved = bool(owned(found, owner))
        self._told_fence(lambda: take_over(self._directory, owner=owner, has_saved=has_saved))
        if self._marks_here:
            for each in behind(found, step or 0):
                logger.warning("a checkpoint is given up step=%d goes_on_from=%d", each.step, step or 0)
                give_up(self._directory / each.name)
        self._line_ends = self.newest = step
        self._run.restored(step)
        self._tell_stored(None)

    def saves(self, step: int) -> float:
        """The framework is about to save `step`. Returns when that was, for `saved`. Raises Fenced as `begin`."""
        owner = self._run.assignment.restore.owner
        self._told_fence(lambda: check_owner(self._directory, owner=owner))
        if self._marks_here:
            begin_writing(self.folder(step))
        told_by_all(None)
        return time.monotonic()

    def saved(
        self,
        step: int,
        began_s: float,
        *,
        wanted: int | None = None,
        place: dict[str, Any] | None = None,
        spikes: dict[str, Any] | None = None,
        tidy: Callable[[], object] = lambda: None,
    ) -> None:
        """This rank has saved its part of `step`; once all have, the checkpoint is marked and reported.

        `wanted` is the request that it answers. `tidy` deletes older ones: it is called once this one counts.
        Raises OSError when the mark cannot be written.
        """
        part = self._run.assignment
        own = all_finite((self._run.is_finite(), self._run.parameters_finite()))
        healthy = all_finite(told_by_all(own))
        if self._marks_here:
            mark = Mark(step, part.world_size, part.restore.owner, healthy, place=place, spikes=spikes)
            write_mark(self.folder(step), mark)
        told_by_all(None)  # so that nobody goes on, and is killed, before it counts
        self._line_ends = self.newest = step
        tidy()
        if part.rank == 0:
            took_s = time.monotonic() - began_s
            self._run.committed(step, str(self.folder(step)), wanted=wanted, stall_s=took_s, took_s=took_s)
        self._tell_stored(step)

    def keep(self, count: int) -> None:
        """Delete complete checkpoints but the newest `count`, and the newest of those that are sound."""
        if not self._marks_here:
            return
        line = listing(self._directory, self._prefix).complete
        for each in superseded(line, count, self._run.standing()):
            self._delete(each.name)

    def rotate(self, names: Sequence[str], limit: int | None, best: str | None) -> None:
        """Delete what a framework would of its folders `names`, oldest first, so that `limit` of them stay; but
        not the one that was saved last, nor the `best`, nor the newest that a rewind would go back to.
        """
        if not self._marks_here:
            return
        goal = rewind_goal(listing(self._directory, self._prefix).complete, self._run.standing())
        needed = {f"{self._prefix}{self.newest}", best or "", goal.name if goal is not None else ""}
        for name in surplus(names, limit, needed):
            self._delete(name)

    def _delete(self, name: str) -> None:
        folder = self._directory / name
        with contextlib.suppress(FileNotFoundError):  # it was not marked
            give_up(folder)
        shutil.rmtree(folder, ignore_errors=True)

    def _told_fence(self, look: Callable[[], None]) -> None:
        """`look` where it is marked; what it finds is raised by all ranks."""
        found = ""
        try:
            if self._marks_here:
                look()
        except Fenced as error:
            found = str(error)
        if why := next((each for each in told_by_all(found) if each), ""):
            raise Fenced(why)

    def _tell_stored(self, saved: int | None) -> None:
        """Rank 0 tells the watchdog what is there to go back to."""
        part = self._run.assignment
        if part.rank != 0:
            return
        # A life before this one counted its rounds by itself: what it saved comes out below 1.
        there = [
            StoredCheckpoint(
                each.step, part.round if each.mark.owner == part.restore.owner else 0, each.name, each.healthy
            )
            for each in listing(self._directory, self._prefix).complete
            if each.step <= (self._line_ends or 0)
        ]
        self._run.stored(told_of(there), count=len(there), uri=str(self._directory), saved=saved)
