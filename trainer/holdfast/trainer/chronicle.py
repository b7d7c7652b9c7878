"""What rank 0 keeps of its run, for comparing it with another: how it was started, and what each step gave."""

import logging
from collections.abc import Callable, Mapping

from holdfast.api import ledger, runhistory, runmanifest
from holdfast.api.control import Assignment
from holdfast.api.errors import Damaged
from holdfast.api.runhistory import RunHistory, StoredHistory
from holdfast.api.runmanifest import RunManifest
from holdfast.trainer.description import Description
from holdfast.trainer.hostcopy import Scalar

logger = logging.getLogger(__name__)


class Chronicle:
    """One process's, over all its rounds; on other ranks than 0 it keeps nothing. `enclosures` may be called from
    any thread, all else from the training thread.
    """

    def __init__(self) -> None:
        self._description = Description()
        self._history = RunHistory()
        self._is_first_rank = False

    @property
    def history(self) -> RunHistory | None:
        """Rank 0's, None on any other."""
        return self._history if self._is_first_rank else None

    def configure(self, settings: Mapping[str, object]) -> None:
        """As `Description.configure`."""
        self._description.configure(settings)

    def enter(self, part: Assignment, loss: Scalar, grad_norm: Scalar) -> None:
        """A round begins. `loss` and `grad_norm` are what the loop hands over in it."""
        self._is_first_rank = part.rank == 0
        if not self._is_first_rank:
            # Another process goes on with it, and may come back with a line that this one does not know.
            self._history.clear()
        loss.arrived = self._history.losses.add if self._is_first_rank else None
        grad_norm.arrived = self._history.norms.add if self._is_first_rank else None

    def begin(self, part: Assignment, *, told: Callable[[RunManifest], object]) -> None:
        """The model is ready for the round's first step."""
        if self._is_first_rank:
            self._description.begin(part, told=told)

    def go_on(self, step: int | None, files: Mapping[str, bytes]) -> None:
        """The round goes on after `step`, None: afresh. A history that cannot be read is a history that is not
        there.
        """
        stored = StoredHistory()
        if (document := files.get(runhistory.FILE_NAME)) is not None:
            try:
                stored = runhistory.decode(document)
            except Damaged as error:
                logger.warning("what was seen of earlier steps is not known reason=%s", error)
        self._history.go_on(step or 0, stored)

    def enclosures(self, step: int, cost: bytes | None) -> dict[str, bytes]:
        """The files of a checkpoint of `step`. `cost` is the job's ledger as told last, None: it was not."""
        if not self._is_first_rank:
            return {}
        files = {runhistory.FILE_NAME: self._history.encode(step)}
        manifest = self._description.wait()
        if manifest is not None:
            fitting = runmanifest.fitted(manifest, runmanifest.BYTES_MAX)
            files[runmanifest.FILE_NAME] = runmanifest.encode(fitting)
        if cost is not None:
            files[ledger.FILE_NAME] = cost
        return files
