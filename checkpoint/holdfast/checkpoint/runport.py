"""What the checkpoint library needs of the run around it, and a run without Holdfast around it."""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.nn.utils import get_total_norm

from holdfast.api.checkpoint import Standing, StoredCheckpoint
from holdfast.api.control import Assignment
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Endpoint, Follows, Restore, Tier

Batch = TypeVar("Batch")


class DrillPort(Protocol):
    """What a drill does to this rank. `holdfast.trainer.drill.Drill` is one; outside of drills there is none."""

    def batch(self, batch: Batch, /) -> Batch:
        """Called with each batch; the loop is given what this returns."""

    def saves_here(self) -> object:
        """Called when a round begins whose checkpoints go to a storage."""

    def write(self) -> object:
        """Called from a background thread for each file of this rank. Raises OSError when the disk is full."""


class RunPort(Protocol):
    """The round the training loop is in. `holdfast.trainer.Run` is one; `Standalone` is another."""

    @property
    def assignment(self) -> Assignment:
        """This process's part in the current round."""

    @property
    def drill(self) -> DrillPort | None:
        """What a drill does to this rank in the current round; None, as a rule."""

    @property
    def rehearsed_from(self) -> str | None:
        """Where to restore from, whatever the script says, and nothing is saved; None, as a rule."""

    def enclosures(self, step: int, /) -> Mapping[str, bytes]:
        """Called on rank 0, from a background thread, for each checkpoint of `step`: what else lies in it, by the
        names of files. It may take seconds.
        """

    def enclosed(self, step: int | None, files: Mapping[str, bytes], /) -> object:
        """Called once per round on rank 0, before `restored`. `files` are what `enclosures` gave for the
        checkpoint of `step`, or, where that came from memory, for the newest one before it; what cannot be read is
        left out.
        """

    def save_due(self, step: int, /) -> int | None:
        """Called after every step on every rank, where there is a directory to save to.

        The number of a request that a save of `step` answers, on all ranks alike; None: none is due.
        """

    def committed(
        self, step: int, uri: str, /, *, round: int, wanted: int | None, stall_s: float, took_s: float
    ) -> object:
        """Called on rank 0, from a background thread, after a checkpoint is durable and visible.

        The thread may outlive its round; `round` is the one that saved. `wanted` is what `save_due` gave,
        `stall_s` how long this rank's training stood still for the save, `took_s` how long it took in all.
        """

    def snapshotted(self, step: int, /) -> object:
        """Called on every rank after a snapshot of `step` is whole in the node's memory."""

    def restored(
        self,
        step: int | None,
        skipped: tuple[str, ...],
        /,
        *,
        tier: Tier,
        healed: tuple[str, ...],
        follows: tuple[Follows, ...],
        until: int | None,
    ) -> object:
        """Called once per round on every rank, before the first step. None: started afresh.

        `tier` is where the state came from, `healed` what was damaged there and taken from elsewhere. `follows`
        is what else of the directive is done, or would be, `until` the last step that the loop makes (None: not
        known).
        """

    def configure(self, settings: Mapping[str, object], /) -> object:
        """Called once per round on every rank, before `watch`: which settings are in force, by their names."""

    def stored(
        self, checkpoints: Sequence[StoredCheckpoint], /, *, count: int, uri: str, round: int, saved: int | None
    ) -> object:
        """Called on rank 0 with what storage holds of the history that goes on, newest first: before `restored`,
        and from a background thread after every deletion. `count` is how many there are, `uri` where they lie,
        `saved` the newest step that the round had committed by then.
        """

    def standing(self) -> Standing:
        """What the watchdog says is verified, and from where on nothing is healthy.

        Asked on rank 0, from a background thread, before each deletion: the newest checkpoint of each kind stays.
        """

    def is_finite(self) -> bool | None:
        """Whether the last loss and gradient norm of this rank were finite; None: it cannot tell.

        Asked on every rank, on the training thread, when the state after a step has been copied.
        """

    def parameters_finite(self) -> bool | None:
        """Whether the parameters in training of the watched model are finite, as far as this rank holds them;
        None: nobody can tell. Asked for each save to storage.
        """

    def watch(self, model: Module, /) -> object:
        """Called once per round on every rank, before the first step, with the model as restored."""

    def took(self, step: int, batch: object, /) -> object:
        """Called on every rank with the batch of `step`, before the loop is given it."""

    def pass_begins(self) -> object:
        """Called when the loop goes through data another time in a round: what was taken may come again."""

    def loader(self, *, workers: int) -> object:
        """Called when a DataLoader of torch is begun, with how many processes it has."""

    def check(self) -> object:
        """Called between steps. Raises when the round is over."""

    def phase(self, phase: Phase, /) -> object:
        """Called when the loop begins to fetch data, to compute, or to stage a checkpoint."""

    def is_current(self) -> bool:
        """Whether the run is in a round that still runs. May be called from any thread."""


class Standalone:
    """A run without Holdfast: one process, or the ranks of an initialised torch.distributed, and one round.

    It restores the newest intact checkpoint at the `uri` it finds, so that a plain rerun resumes; where a script
    overrides `is_finite`, the newest one that was finite. `restore=Restore(tier=Tier.NONE)` starts over instead.
    """

    drill: DrillPort | None = None
    rehearsed_from: str | None = None

    def __init__(self, uri: str = "", *, round: int = 0, restore: Restore | None = None) -> None:
        self._watched: Module | None = None
        is_distributed = dist.is_available() and dist.is_initialized()
        rank = dist.get_rank() if is_distributed else 0
        world_size = dist.get_world_size() if is_distributed else 1
        self.assignment = Assignment(
            job="default/standalone",
            round=round,
            rank=rank,
            local_rank=rank,
            world_size=world_size,
            local_size=world_size,
            endpoint=Endpoint(host="", port=0),
            restore=restore or Restore(tier=Tier.CHECKPOINT, uri=uri),
            reason="standalone",
        )

    def save_due(self, step: int, /) -> None:
        """Nobody asks."""

    def enclosures(self, step: int, /) -> Mapping[str, bytes]:
        """Nothing is known but the state."""
        return {}

    def enclosed(self, step: int | None, files: Mapping[str, bytes], /) -> None:
        """Nobody to tell."""

    def committed(
        self, step: int, uri: str, /, *, round: int, wanted: int | None, stall_s: float, took_s: float
    ) -> None:
        """Nobody to tell."""

    def snapshotted(self, step: int, /) -> None:
        """Nobody to tell."""

    def restored(
        self,
        step: int | None,
        skipped: tuple[str, ...],
        /,
        *,
        tier: Tier,
        healed: tuple[str, ...],
        follows: tuple[Follows, ...],
        until: int | None,
    ) -> None:
        """Nobody to tell."""

    def configure(self, settings: Mapping[str, object], /) -> None:
        """Nobody to tell."""

    def stored(
        self, checkpoints: Sequence[StoredCheckpoint], /, *, count: int, uri: str, round: int, saved: int | None
    ) -> None:
        """Nobody to tell."""

    def standing(self) -> Standing:
        """Nobody compares, nobody watches the loss."""
        return Standing()

    def is_finite(self) -> bool | None:
        """Only the script knows. One that can tell says so by a method of its own."""
        return None

    def parameters_finite(self) -> bool | None:
        """Of the model that was given to `watch`. Waits for the device."""
        return None if self._watched is None else _are_finite(self._watched)

    def watch(self, model: Module, /) -> None:
        """Looked at when it is saved."""
        self._watched = model

    def took(self, step: int, batch: object, /) -> None:
        """Nobody compares."""

    def pass_begins(self) -> None:
        """Nobody compares."""

    def loader(self, *, workers: int) -> None:
        """Nobody watches."""

    def check(self) -> None:
        """A standalone round never ends."""

    def phase(self, phase: Phase, /) -> None:
        """Nobody watches."""

    def is_current(self) -> bool:
        return True


@torch.no_grad()
def _are_finite(model: Module) -> bool:
    trained = [each for each in model.parameters() if each.requires_grad and each.dtype.itemsize > 1]
    held = [each.to_local() if isinstance(each, DTensor) else each for each in trained]
    # The largest of all magnitudes, which is not finite when one of them is not: it cannot overflow by itself.
    largest = get_total_norm([each for each in held if each.numel()], norm_type=math.inf)
    return bool(largest.isfinite())
