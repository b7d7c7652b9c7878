"""The callback for Lightning's Trainer."""

import functools
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.optim import Optimizer

from holdfast.api.control import CONTROL_VARIABLE
from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.rankrecord import UNKNOWN_INT, Phase
from holdfast.checkpoint.foreign import ForeignCheckpoints
from holdfast.integrations.gradients import drop, parameters_of, total_norm
from holdfast.integrations.lightning.atomicio import AtomicCheckpointIO
from holdfast.integrations.lightning.batch import adjusted_accumulation
from holdfast.integrations.lightning.place import Place
from holdfast.trainer import GuestRun, Run, SpikeGuard, joined

logger = logging.getLogger(__name__)

FORMAT: Final = "lightning"
STATE_FILE: Final = "state.ckpt"
"""What `Trainer.save_checkpoint` wrote: a file, or a folder where the strategy saves shards."""


class HoldfastCallback(Callback):
    """Makes a fit of a Trainer one that Holdfast sees and heals: `Trainer(callbacks=[HoldfastCallback()])`.

    Steps, this rank's loss, the gradient norm, tokens and phases are published. After every `every_steps`
    optimizer steps, when the job or the watchdog asks for it, and after the last step the Trainer's own checkpoint
    is saved, whatever its strategy, as a complete one in Holdfast's storage. A fit that begins anew goes on from
    the newest complete one by itself, `trainer.fit(model)` being all that is called, to the very batch and random
    number; what is given as its `ckpt_path` is where the first one begins.

    Args:
        uri: a directory that all ranks see; by default where the job says, else `holdfast` in the Trainer's
            `default_root_dir`. Outside of Holdfast nothing is saved unless this or `every_steps` is given.
        every_steps: optimizer steps between two saves, besides those that are asked for.
        keep: how many checkpoints stay; by default what the job says, else 3.
        guards_spikes: leave out the update of a step whose gradient norm is a spike, as `SpikeGuard` judges it, on
            all ranks alike. It needs the norm on the host at every step. Under automatic optimization only.
        skips_nonfinite: leave out steps that are not finite as well; otherwise they are a fault, which is gone
            back for.
        global_batch: samples of a step over all ranks, kept in worlds of any size: `accumulate_grad_batches` is
            set for it. None: as the Trainer says.

    Raises InvalidInput for an argument that is not accepted; the fit raises it where `global_batch` cannot be
    kept.
    """

    def __init__(
        self,
        *,
        uri: str | None = None,
        every_steps: int | None = None,
        keep: int | None = None,
        guards_spikes: bool = True,
        skips_nonfinite: bool = False,
        global_batch: int | None = None,
    ) -> None:
        for name, number in (("every_steps", every_steps), ("keep", keep), ("global_batch", global_batch)):
            if number is not None and number < 1:
                raise InvalidInput(Problem(field=name, value=number, fix="write at least 1"))
        self._uri, self._every_steps, self._keep = uri, every_steps, keep
        self._guards_spikes, self._skips_nonfinite = guards_spikes, skips_nonfinite
        self._global_batch = global_batch
        self._fit: _Fit | None = None
        self._guard_state: dict[str, Any] = {}

    def tokens_of(self, batch: Any) -> int:
        """How many tokens are in a batch, `UNKNOWN_INT` where nobody knows: the size of its "input_ids", unless a
        class of your own says otherwise.
        """
        return tokens_in(batch)

    # A fit begins

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != TrainerFn.FITTING:
            return
        # Last, so that what is saved has what other callbacks did after the step.
        others = [each for each in trainer.callbacks if each is not self]  # type: ignore[attr-defined]
        trainer.callbacks = [*others, self]  # type: ignore[attr-defined]
        run = joined()
        if isinstance(run, GuestRun):
            run.training_begins()
        self._fit = _Fit(run, SpikeGuard(run.assignment), Place(run.assignment.rank, run.assignment.world_size))
        uri = self._place_of_checkpoints(trainer, run)
        if uri is not None:
            self._fit.checkpoints = ForeignCheckpoints(run, format=FORMAT, uri=uri, keep=self._keep)
            self._resume(trainer, self._fit, self._fit.checkpoints)
            if not isinstance(trainer.strategy.checkpoint_io, _WrappingCheckpointIO):
                trainer.strategy.checkpoint_io = AtomicCheckpointIO(trainer.strategy.checkpoint_io)

    def _place_of_checkpoints(self, trainer: Trainer, run: Run) -> str | None:
        if uri := run.rehearsed_from or self._uri or run.assignment.restore.uri:
            return uri
        if CONTROL_VARIABLE in os.environ or self._every_steps is not None:
            return str(Path(trainer.default_root_dir).absolute() / "holdfast")
        return None

    def _resume(self, trainer: Trainer, fit: "_Fit", checkpoints: ForeignCheckpoints) -> None:
        """Have the Trainer restore the newest complete checkpoint at the moment that suits its strategy."""
        folder = checkpoints.restore(until=trainer.max_steps if trainer.max_steps > 0 else None)
        if folder is None or checkpoints.saved_world_size is None:
            return
        fit.place.load(folder, checkpoints.saved_world_size)
        fit.step = fit.saved = checkpoints.restored_step or 0
        connector = trainer._checkpoint_connector
        original = connector.resume_start

        @functools.wraps(original)
        def resume_start(checkpoint_path: Any = None, weights_only: bool | None = None) -> None:
            connector.resume_start = original  # type: ignore[method-assign]
            original(folder / STATE_FILE, weights_only=weights_only)

        connector.resume_start = resume_start  # type: ignore[method-assign]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        fit = self._here()
        if self._guard_state:
            fit.guard.load_state_dict(self._guard_state)
        if self._global_batch is not None:
            trainer.accumulate_grad_batches = adjusted_accumulation(trainer, self._global_batch)
        fit.place.go_on(trainer)
        fit.run.watch(pl_module)
        loader = trainer.train_dataloader
        if isinstance(loader, torch.utils.data.DataLoader):
            fit.run.loader(workers=loader.num_workers)
        fit.run.phase(Phase.DATA)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        fit = self._here()
        fit.place.epoch_begins(trainer)
        fit.run.pass_begins()

    # A step

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        fit = self._here()
        fit.run.took(fit.step + 1, batch)
        fit.count_tokens(self.tokens_of(batch))
        fit.run.phase(Phase.FORWARD)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self._here().run.phase(Phase.BACKWARD)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        fit = self._here()
        fit.run.phase(Phase.OPTIMIZER)
        norm = total_norm(pl_module if trainer.model is None else trainer.model, parameters_of(optimizer))
        is_scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        if not pl_module.automatic_optimization:
            fit.add_norm(norm, is_scaled=is_scaled)
            return
        fit.grad_norm = norm
        # A scaler leaves out what is not finite, and looks for a scale that is small enough.
        skips_nonfinite = self._skips_nonfinite or is_scaled
        if not (self._guards_spikes or skips_nonfinite):
            return
        guard = fit.guard if self._guards_spikes else None
        if norm is not None and not skips_nonfinite and not torch.isfinite(norm):
            norm = None  # a fault, which is gone back for
        if fit.run.should_skip(fit.step + 1, grad_norm=norm, guard=guard):
            drop(optimizer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        fit = self._here()
        fit.add_loss(loss_in(outputs))
        step = trainer.global_step
        if step <= fit.step:
            fit.run.phase(Phase.DATA)
            return
        before, fit.step = fit.step, step
        fit.run.step(step, loss=fit.loss, grad_norm=fit.grad_norm, tokens=fit.tokens)
        fit.loss, fit.grad_norm, fit.tokens = None, None, 0
        fit.run.phase(Phase.DATA)  # the Trainer's loader is asked without a word
        if fit.checkpoints is None:
            return
        wanted = fit.run.save_due(step)
        cadences = (self._every_steps, fit.run.assignment.save_every)
        if wanted is not None or any(crosses(each, before=before, step=step) for each in cadences):
            fit.wanted, fit.is_due = wanted, True
        # At the end of an epoch the Trainer still validates, and goes on behind that.
        if fit.is_due and not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            self._save(trainer, fit)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        fit = self._here()
        if fit.is_due:
            self._save(trainer, fit)

    def _save(self, trainer: Trainer, fit: "_Fit") -> None:
        def write(folder: Path) -> None:
            trainer.save_checkpoint(folder / STATE_FILE)
            fit.place.save(folder, trainer)

        assert fit.checkpoints is not None, "where there are none nothing is due"
        fit.is_due, wanted, fit.wanted = False, fit.wanted, None
        if fit.checkpoints.save(fit.step, write, wanted=wanted):
            fit.saved = fit.step
        fit.run.phase(Phase.DATA)

    # No step is to be expected

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is not None:
            self._fit.run.phase(Phase.IDLE)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._fit is not None:
            self._fit.run.phase(Phase.DATA)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._fit is not None:
            self._fit.run.phase(Phase.CHECKPOINT)

    # A fit ends

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        fit = self._here()
        if fit.checkpoints is not None and fit.step > fit.saved:
            self._save(trainer, fit)
        fit.run.phase(Phase.IDLE)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        fit, self._fit = self._here(), None
        if fit.checkpoints is not None:
            fit.checkpoints.close()
        if isinstance(fit.run, GuestRun):
            fit.run.leave()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        fit, self._fit = self._fit, None
        if fit is not None and isinstance(fit.run, GuestRun):
            fit.run.failed(exception)

    # What goes into the Trainer's checkpoint

    def state_dict(self) -> dict[str, Any]:
        return {} if self._fit is None else self._fit.guard.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._guard_state = state_dict

    def _here(self) -> "_Fit":
        assert self._fit is not None, "the Trainer has called setup for this fit"
        return self._fit


class _Fit:
    """One fit. `step` is the newest step that was published, `saved` the newest that was saved or restored."""

    def __init__(self, run: Run, guard: SpikeGuard, place: Place) -> None:
        self.run, self.guard, self.place = run, guard, place
        self.checkpoints: ForeignCheckpoints | None = None
        self.step = self.saved = 0
        self.loss: Tensor | None = None
        self.grad_norm: Tensor | None = None
        self.tokens = 0
        self.is_due = False
        self.wanted: int | None = None

    def add_loss(self, loss: Tensor | None) -> None:
        """Of a micro batch, of which the Trainer has made a share of the step's."""
        if loss is not None:
            self.loss = loss if self.loss is None else self.loss + loss

    def add_norm(self, norm: Tensor | None, *, is_scaled: bool) -> None:
        """Of the gradients of one of a step's optimizers. With `is_scaled`, a scaler leaves out an update whose
        norm is not finite, which is no fault.
        """
        if norm is None or (is_scaled and not torch.isfinite(norm)):
            return
        self.grad_norm = norm if self.grad_norm is None else torch.hypot(self.grad_norm, norm)

    def count_tokens(self, tokens: int) -> None:
        self.tokens = UNKNOWN_INT if tokens < 0 or self.tokens < 0 else self.tokens + tokens


def crosses(cadence: int | None, *, before: int, step: int) -> bool:
    """Whether a multiple of `cadence` (None: there is none) lies behind `before` and up to `step`."""
    return cadence is not None and step // cadence > before // cadence


def tokens_in(batch: Any) -> int:
    """The size of the batch's "input_ids"; `UNKNOWN_INT` where it has none."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    return ids.numel() if isinstance(ids, Tensor) else UNKNOWN_INT


def loss_in(outputs: Any) -> Tensor | None:
    """The loss that a training step returned, None where it returned none."""
    found = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return found.detach() if isinstance(found, Tensor) and found.numel() == 1 else None
