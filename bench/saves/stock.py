"""Stock torch.distributed.checkpoint in the ways its users run it."""

import time
from concurrent.futures import Future
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from saves.subject import Subject


class Way(StrEnum):
    """How DCP is told to save."""

    SYNC = "dcp.save"
    THREAD = "dcp.async_save, thread, default stager"
    THREAD_KEPT = "dcp.async_save, thread, kept stager in shared memory"
    PROCESS_KEPT = "dcp.async_save, process, kept stager in shared memory"


class Stock:
    """One way of saving with DCP, over a group of its own: over the trainer's, a save and a step may deadlock."""

    def __init__(self, subject: Subject, way: Way) -> None:
        self._subject = subject
        self._way = way
        self._group = dist.new_group(backend="gloo")
        self._stager = _kept_stager() if way in (Way.THREAD_KEPT, Way.PROCESS_KEPT) else None
        self._future: Future[Any] | None = None

    def save(self, folder: Path) -> float:
        """Seconds that the training loop stands still for it."""
        began = time.perf_counter()
        state = _state(self._subject)
        if self._way is Way.SYNC:
            dcp.save(state, checkpoint_id=folder, process_group=self._group)
        else:
            kind = AsyncCheckpointerType.THREAD
            if self._way is Way.PROCESS_KEPT:
                kind = AsyncCheckpointerType.PROCESS
            options: dict[str, Any] = {"async_checkpointer_type": kind}
            if self._stager is not None:
                options["async_stager"] = self._stager
            future = dcp.async_save(state, checkpoint_id=folder, process_group=self._group, **options)
            assert isinstance(future, Future)
            self._future = future
        return time.perf_counter() - began

    def is_committed(self) -> bool:
        return self._future is None or self._future.done()

    def wait(self) -> float:
        """Wait until the save has ended, which was at the returned reading of the clock."""
        if self._future is not None:
            self._future.result()
            self._future = None
        return time.perf_counter()

    def close(self) -> None:
        if self._stager is not None:
            self._stager.close()
        dist.destroy_process_group(self._group)


def load(subject: Subject, folder: Path) -> None:
    """Raises what dcp.load raises."""
    state = _state(subject)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        subject.model,
        subject.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )


def _state(subject: Subject) -> dict[str, Any]:
    model, optimizer = get_state_dict(subject.model, subject.optimizer)
    return {"model": model, "optimizer": optimizer}


def _kept_stager() -> DefaultStager:
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=False,
            use_shared_memory=True,
            use_async_staging=False,
            use_non_blocking_copy=False,
        )
    )
