"""A loop of Accelerate's under Holdfast: its `for` line.

    for batch in Batches(accelerator, loader, folder="checkpoints", every_steps=100, epochs=3):

in place of the loops over epochs and over `loader`. What is in the loop stays as it is. The state is that of
`accelerator.save_state` and `load_state`, which know DDP, FSDP and whatever was registered for checkpointing;
where the loop was in its data is kept beside it.

It goes on from the newest complete checkpoint in `folder`, under Holdfast, under stock torchrun and by hand.
Where a dataset draws random numbers as it is read, in this process, what it draws after that differs: Accelerate
has read a batch ahead.

Source: https://huggingface.co/docs/accelerate/usage_guides/checkpoint
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.capture.cursor import Cursor, cursor_of
from holdfast.integrations.checkpointfolders import CheckpointFolders, told_by_all
from holdfast.integrations.globalbatch import share_of
from holdfast.integrations.life import batch_of_life
from holdfast.integrations.observed import Observed
from holdfast.integrations.sampleorder import SampleOrder
from holdfast.trainer import GuestRun, Phase, SpikeGuard, joined

logger = logging.getLogger(__name__)

PREFIX: Final = "checkpoint-"
_KEEP: Final = 3


@dataclass
class Batches:
    """The batches of `loader`, which `accelerator` has prepared, for so many `epochs`; first what was trained is
    restored. All ranks make it alike, after `accelerator.prepare`, and go over it once.

    A step is complete when an optimizer that `accelerator` prepared was asked for one and the loop comes back for
    its next batch: its loss, norm and tokens are published, and it is saved in `folder` when `every_steps` divides
    it, when the job says so, and when it is the last. `keep` is how many checkpoints stay (None: what the job
    says, else 3). `guard` leaves steps out; unasked there is one where the job says how far a norm may go.
    `global_batch` are the samples of a step over all ranks, unasked those of the job's first round: in a world of
    another size the gradient accumulation changes, which a loop follows that computes inside of
    `accelerator.accumulate(model)`.

    Raises InvalidInput when a number is below 1, when `accelerator` sees a world of another size than the round's,
    and when the global batch cannot be kept, with the sizes that would fit; going over it, NothingToRestore when
    the job has something to go back to and it is not there, and RoundEnded when the round is over.
    """

    accelerator: Any
    loader: Any
    _: KW_ONLY
    folder: str | Path
    every_steps: int | None = None
    epochs: int = 1
    keep: int | None = None
    guard: SpikeGuard | None = None
    global_batch: int | None = None

    def __post_init__(self) -> None:
        numbers = {"every_steps": self.every_steps, "epochs": self.epochs, "keep": self.keep}
        for name, number in {**numbers, "global_batch": self.global_batch}.items():
            if number is not None and number < 1:
                raise InvalidInput(Problem(field=name, value=number, fix="write at least 1"))
        self._run = joined()
        part = self._run.assignment
        self._check_world(part.inside().world_size)
        if self.guard is None and part.spikes is not None:
            self.guard = SpikeGuard(part)
        self._folders = CheckpointFolders(
            self._run, Path(self.folder), prefix=PREFIX, marks_here=_writes_to(self.accelerator)
        )
        self._accumulation = self._share_batch()
        self._observed = Observed(self.accelerator, self._run, self.guard)
        self._cursor = Cursor()  # in samples
        self._order, self._kept_order = SampleOrder(self.loader), ""  # the latter of the epoch begun

    def __iter__(self) -> Iterator[Any]:
        go_on = self._restore()
        with self._observed:
            for optimizer in self.accelerator._optimizers:
                self._observed.guards(optimizer)
            while self._cursor.epoch < self.epochs:
                yield from self._epoch_from(go_on)
                go_on = None
                self._cursor = Cursor(self._cursor.epoch + 1)
            self._run.phase(Phase.IDLE)
            if self._observed.step > (self._folders.newest or 0):
                self._save(None)
            if isinstance(self._run, GuestRun):
                self._run.leave()

    def _restore(self) -> "Callable[[], None] | None":
        """What is to be called once the first batch was read: random numbers go on as they were. None: afresh."""
        chosen, _ = self._folders.choose()
        models = self.accelerator._models
        if len(models) == 1:
            self._run.watch(models[0], part=self._part())
        if chosen is None:
            self._folders.begin(None)
            return None
        self.accelerator.load_state(str(self._folders.folder(chosen.step)))
        # What is saved is the end of a step. The count that it brings is of a world that accumulated otherwise.
        self.accelerator.step = 0
        if self.guard is not None and chosen.mark.spikes is not None:
            self.guard.load_state_dict(chosen.mark.spikes)
        _begin_anew(self.loader)
        place = chosen.mark.place or {}
        self._cursor = cursor_of({"taken": place.get("samples", 0), **place}) or Cursor()
        self._kept_order = str(place.get("order", ""))
        self._observed.step = chosen.step
        self._folders.begin(chosen.step)
        state = torch.get_rng_state()
        return lambda: torch.set_rng_state(state)

    def _epoch_from(self, go_on: "Callable[[], None] | None") -> Iterator[Any]:
        """The batches of the epoch that are still to come."""
        skipped = self._cursor.each(self.loader.total_batch_size)
        if go_on is None:
            self._kept_order = self._order.kept()
        else:
            self._order.again(self._kept_order)
        loader = self.loader
        # The one that passes batches over has the samplers of this one, and does not hand on what it is told.
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(self._cursor.epoch)
        if skipped:
            loader = self.accelerator.skip_first_batches(loader, skipped)
        self._run.phase(Phase.DATA)
        for batch in loader:
            if go_on is not None:
                go_on()
                go_on = None
            self._run.phase(Phase.FORWARD)
            self._observed.took(batch)
            counted = self.accelerator.step
            yield batch
            taken = self._cursor.taken + self.loader.total_batch_size
            self._cursor = Cursor(self._cursor.epoch, taken)
            self._check_accumulation(counted)
            if self._observed.has_stepped:
                self._completed()
            self._run.phase(Phase.DATA)
        if go_on is not None:  # what was saved was the end of the epoch
            go_on()
        self._order.ended()

    def _completed(self) -> None:
        step = self._observed.step + 1
        self._observed.completed(step)
        wanted = self._run.save_due(step)
        every = [each for each in (self.every_steps, self._run.assignment.save_every) if each is not None]
        if wanted is not None or any(step % each == 0 for each in every):
            self._save(wanted)

    def _save(self, wanted: int | None) -> None:
        step = self._observed.step
        self._run.phase(Phase.CHECKPOINT)
        began_s = self._folders.saves(step)
        self.accelerator.save_state(str(self._folders.folder(step)))
        self._folders.saved(
            step,
            began_s,
            wanted=wanted,
            place={**self._cursor.plain(), "order": self._kept_order},
            spikes=None if self.guard is None else self.guard.state_dict(),
            tidy=lambda: self._folders.keep(self.keep or self._run.assignment.keep or _KEEP),
        )

    def _check_world(self, world_size: int) -> None:
        """An accelerator that is alone, or was made for a world that is gone, trains on other samples than it
        says.
        """
        seen = self.accelerator.num_processes
        if seen != world_size:
            fix = (
                f"the round has {world_size} ranks; make the Accelerator in the training function, with cpu=True "
                "where there are no GPUs, and set neither RANK nor WORLD_SIZE"
            )
            raise InvalidInput(Problem("accelerator.num_processes", seen, fix))

    def _part(self) -> str:
        """What ranks hold in plain tensors without being replicas is compared with nobody's."""
        kind = str(getattr(self.accelerator.distributed_type, "value", ""))
        is_sharded = kind in ("DEEPSPEED", "MEGATRON_LM") or (kind == "FSDP" and not self.accelerator.is_fsdp2)
        return f"rank {self._run.assignment.rank}" if is_sharded else ""

    def _share_batch(self) -> int | None:
        """Set the gradient accumulation that keeps the global batch; None: it is as the script says."""
        accelerator, part = self.accelerator, self._run.assignment
        at_once, ranks = self.loader.total_batch_size, accelerator.num_processes
        said = at_once * accelerator.gradient_accumulation_steps
        wanted = self.global_batch
        if wanted is None:
            owner, first = part.restore.owner, part.rank == 0
            wanted = told_by_all(batch_of_life(Path(self.folder), owner=owner, said=said) if first else said)[0]
        micro = max(1, at_once // ranks)
        share = share_of(wanted, world_size=ranks, micro_batch=micro)
        if wanted == said:
            return None
        if share.micro_batch != micro:
            fix = f"make the loader with batch_size={share.micro_batch}, for a global batch of {wanted}"
            raise InvalidInput(Problem("batch_size", micro, f"{ranks} ranks cannot take it; {fix}"))
        logger.warning("the global batch stays global_batch=%d accumulation=%d", wanted, share.accumulation)
        accelerator.gradient_accumulation_steps = share.accumulation
        return share.accumulation

    def _check_accumulation(self, counted: int) -> None:
        """A loop that does not accumulate through the accelerator would train smaller batches unnoticed."""
        accelerator = self.accelerator
        moved = accelerator.step != counted or accelerator.gradient_state.end_of_dataloader
        if self._accumulation not in (None, 1) and not moved:
            fix = "compute inside of `with accelerator.accumulate(model):`, which follows it"
            raise InvalidInput(Problem("gradient_accumulation_steps", self._accumulation, fix))


def _begin_anew(loader: Any) -> None:
    """`load_state` has given a StatefulDataLoader its state, as of one rank. Batches passes over them by itself,
    in a world of any size, and each epoch is to begin at its beginning.
    """
    stateful: Any = getattr(loader, "base_dataloader", None)
    if hasattr(stateful, "next_iter_state"):
        stateful.next_iter_state = stateful._iterator = None
        stateful._initial_iter_for_state_dict = False


def _writes_to(accelerator: Any) -> bool:
    """Whether this process marks what all have saved."""
    configuration = accelerator.project_configuration
    each_node = getattr(configuration, "save_on_each_node", False)
    return bool(accelerator.is_local_main_process if each_node else accelerator.is_main_process)
