"""Where a Trainer is in its data, and its random numbers: what a checkpoint of Lightning does not hold.

Lightning goes on in the middle of an epoch with the right count of batches, but with the first ones of the loader
again, unless the loader knows its own state. So each rank keeps how many batches of the epoch it had taken, the
random numbers that the epoch began with, of which a shuffling loader makes its order, and those of now. The epoch
is dealt out again, and the batches that were taken are passed over.
Source: https://github.com/Lightning-AI/pytorch-lightning, src/lightning/pytorch/loops/training_epoch_loop.py
"""

import logging
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.pytorch import Trainer
from lightning.pytorch.loops.fetchers import _DataFetcher
from torch.utils.data import DistributedSampler

from holdfast.checkpoint.capture import randomness
from holdfast.checkpoint.capture.dataplace import Stateful

logger = logging.getLogger(__name__)


def place_file(rank: int) -> str:
    """Its name in a checkpoint's folder."""
    return f"place.rank-{rank:05d}.pt"


def batches_in(batches: int, *, saved_world: int, world: int) -> int:
    """How many batches each rank of `world` passes over where each of `saved_world` had taken `batches`: the
    number over all ranks stays, rounded down.
    """
    return batches * saved_world // world


class Place:
    """One rank's place. Lives as long as the fit."""

    def __init__(self, rank: int, world: int) -> None:
        self._rank, self._world = rank, world
        self._epoch_random: dict[str, torch.Tensor] = {}
        self._found: dict[str, Any] | None = None
        self._saved_world = world
        self._is_between = False  # it goes on between two epochs

    def epoch_begins(self, trainer: Trainer) -> None:
        """The Trainer is about to ask for the first batch of an epoch, or to make its iterator, as for each but
        the first of a fit.
        """
        self._epoch_random = randomness.capture()
        if self._is_between:
            self._is_between = False
            iter(_fetcher(trainer))

    def save(self, folder: Path, trainer: Trainer) -> None:
        """Into this rank's file in `folder`."""
        taken = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        random = {"epoch_random": self._epoch_random, "random": randomness.capture()}
        state = {"taken": taken, "is_dealt": _is_dealt(trainer), **random}
        torch.save(state, folder / place_file(self._rank))

    def load(self, folder: Path, saved_world: int) -> None:
        """What `save` left, for `go_on`. In a world of another size a rank takes that of another one."""
        self._saved_world = saved_world
        file = folder / place_file(randomness.source_rank(self._rank, saved_world))
        self._found = torch.load(file, weights_only=True)

    def go_on(self, trainer: Trainer) -> None:
        """Pass over what was taken, once the Trainer has made its loaders and before it asks for a batch."""
        found, self._found = self._found, None
        if found is None:
            return
        progress = trainer.fit_loop.epoch_loop.batch_progress
        taken = progress.current.ready
        if self._saved_world != self._world:
            behind = (
                taken - progress.current.completed
            )  # one, where it was saved behind a batch: the Trainer adds it
            taken = batches_in(taken, saved_world=self._saved_world, world=self._world)
            for name in ("ready", "started", "processed"):
                setattr(progress.current, name, taken)
            progress.current.completed = taken - behind
        if taken < trainer.num_training_batches:
            self._epoch_random = found["epoch_random"]
            if taken and found.get("is_dealt", True) != _is_dealt(trainer):
                logger.warning(
                    "the rest of the epoch has other samples than were left: the strategy for one rank shuffles in"
                    ' another order than that for several; write strategy="ddp" instead of "auto"'
                )
            if not _is_stateful(trainer):
                self._pass_over(trainer, taken)
        else:
            self._is_between = True
        self._continue_from(found["random"])

    def _pass_over(self, trainer: Trainer, taken: int) -> None:
        fetcher, epochs = _fetcher(trainer), trainer.fit_loop.epoch_progress.state_dict()
        for loader in fetcher.combined_loader.flattened:
            _set_sampler_epoch(loader, epochs["current"]["processed"])  # as the Trainer does it, a little later
        self._continue_from(self._epoch_random)
        if trainer.current_epoch > 0:
            iter(fetcher)  # the iterator of a later epoch is made after its random numbers were kept
        source = fetcher if fetcher.length is None or fetcher.iterator is None else fetcher.iterator
        for _ in range(taken):
            next(source)

    def _continue_from(self, random: dict[str, torch.Tensor]) -> None:
        randomness.continue_from(random, self._saved_world, rank=self._rank, world_size=self._world)


def _fetcher(trainer: Trainer) -> _DataFetcher:
    fetcher = trainer.fit_loop._data_fetcher
    assert fetcher is not None, "the Trainer has made its loaders"
    return fetcher


def _is_dealt(trainer: Trainer) -> bool:
    """Whether the samples are dealt out to ranks, in an order that is the same in a world of any size."""
    loader = trainer.fit_loop._combined_loader
    samplers = [] if loader is None else [getattr(each, "sampler", None) for each in loader.flattened]
    return any(isinstance(each, DistributedSampler) for each in samplers)


def _is_stateful(trainer: Trainer) -> bool:
    """Whether Lightning itself gives the loaders their state back."""
    loader = trainer.fit_loop._combined_loader
    return loader is not None and all(isinstance(each, Stateful) for each in loader.flattened)
