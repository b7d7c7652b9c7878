"""Holdfast in torchtitan: its checkpoint manager, which the trainer calls after every step.

    config.checkpoint = HoldfastCheckpoints.Config(enable=True, interval=500)

torchtitan makes what a checkpoint holds, through torch's distributed checkpoints; Holdfast makes it a complete one
in its storage, says from which one a round goes on, and asks for more. The manager is given the trainer as the
state of training, and listens to it there: steps, each rank's loss, the norm, tokens and phases are published.
"""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torchtitan.components.checkpoint import AsyncMode, CheckpointManager
from torchtitan.distributed import utils as distributed_utils
from torchtitan.trainer import Trainer

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.rankrecord import Phase
from holdfast.checkpoint.foreign import ForeignCheckpoints
from holdfast.trainer import GuestRun, Run, SpikeGuard, joined

logger = logging.getLogger(__name__)

FORMAT: Final = "torchtitan"
FOLDER: Final = "holdfast"
"""Of Holdfast's checkpoints in torchtitan's dump folder, where neither the job nor the script names a place."""
SPIKES: Final = "holdfast_spikes"


class HoldfastCheckpoints(CheckpointManager):
    """torchtitan's manager with Holdfast's storage. Its own folder gets the last, exported checkpoint only, and is
    read where Holdfast has none yet: so a run that was begun without goes on with.

    Its settings are those of `CheckpointManager.Config`, and `uri`: a directory that all ranks see (by default
    what the job says, else `holdfast` in the dump folder), and `guards_spikes`, as with `SpikeGuard`, which needs
    the norm on the host at every step. Saves are synchronous, whatever `async_mode` says; `keep_latest_k` says how
    many stay.

    Raises InvalidInput when checkpointing is disabled: nothing would call it then.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):
        """What is added to torchtitan's own."""

        uri: str = ""
        """Where checkpoints are kept."""

        guards_spikes: bool = True
        """Leave out the update of a step whose gradient norm is a spike, on all ranks alike."""

    def __init__(self, config: Config, **parts: Any) -> None:
        if not config.enable:
            fix = "write enable=True: torchtitan calls a manager that is disabled for nothing"
            raise InvalidInput(Problem(field="checkpoint.enable", value=False, fix=fix))
        super().__init__(config, **parts)
        trainer = self.states["train_state"]
        assert isinstance(trainer, Trainer), "torchtitan's trainer is its own training state"
        self._trainer = trainer
        self._uri = config.uri
        self._keep = config.keep_latest_k or None
        self._default_uri = str((Path(parts.get("base_folder", "")) / FOLDER).absolute())
        self._guards_spikes = config.guards_spikes
        self._run: Run | None = None
        self._values = _Values()

    def _load(self, step: int = -1) -> bool:
        run = self._run = joined()
        if isinstance(run, GuestRun):
            run.training_begins()
        guard = SpikeGuard(run.assignment)
        uri = run.rehearsed_from or self._uri or run.assignment.restore.uri or self._default_uri
        self._checkpoints = ForeignCheckpoints(run, format=FORMAT, uri=uri, keep=self._keep)
        folder = self._checkpoints.restore(until=self._trainer.config.training.steps)
        if folder is None:
            is_loaded = bool(super()._load(step))
            self.states[SPIKES] = guard  # torchtitan's own checkpoints have none
        else:
            self.states[SPIKES] = guard
            self.dcp_load(
                self._states_to_load(model_only=False),
                checkpoint_id=str(folder),
                from_hf=False,
                from_quantized=False,
            )
            is_loaded = True
        self._values.listen(self._trainer, run, guard if self._guards_spikes else None)
        run.watch(self._trainer.model_parts[0])
        run.phase(Phase.DATA)
        return is_loaded

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        run = self._run
        assert run is not None, "torchtitan loads before it trains"
        values, step = self._values, curr_step
        run.step(step, loss=values.loss, grad_norm=values.grad_norm, tokens=values.tokens(self._trainer))
        values.clear()
        wanted, is_saved = run.save_due(step), False
        every = run.assignment.save_every
        if wanted is not None or self._should_save(step) or last_step or (every and step % every == 0):
            is_saved = self._checkpoints.save(step, self._write, wanted=wanted)
        if last_step:
            super()._save(step, last_step=True)  # what torchtitan exports at the end
            if isinstance(run, GuestRun):
                run.leave()
        run.phase(Phase.IDLE if last_step else Phase.DATA)
        return is_saved

    def _write(self, folder: Path) -> None:
        self.dcp_save(
            self._flattened_model_states_sd(),
            checkpoint_id=str(folder),
            async_mode=AsyncMode.DISABLED,
            enable_garbage_collection=True,
        )


class _Values:
    """What a trainer computes in a step, noted as it does."""

    def __init__(self) -> None:
        self.loss: Tensor | None = None
        self.grad_norm: Tensor | None = None
        self._seen_tokens = 0

    def clear(self) -> None:
        """A step is over."""
        self.loss = self.grad_norm = None

    def tokens(self, trainer: Trainer) -> int:
        """How many were seen since this was asked before."""
        seen, self._seen_tokens = trainer.ntokens_seen - self._seen_tokens, trainer.ntokens_seen
        return int(seen)

    def listen(self, trainer: Trainer, run: Run, guard: SpikeGuard | None) -> None:
        """From now on, to what `trainer` computes."""
        self._seen_tokens = trainer.ntokens_seen
        dimensions = trainer.parallel_dims
        ranks = dimensions.get_mesh("batch").size() if dimensions.dp_enabled else 1
        forward_backward, update = trainer.forward_backward_step, trainer.optimizers.step

        @functools.wraps(forward_backward)
        def noted(**words: Any) -> Tensor:
            run.phase(Phase.FORWARD)
            share: Tensor = forward_backward(**words)
            # A rank's share of the mean over all ranks; of a pipeline only the last stage has one.
            if not dimensions.pp_enabled or trainer.pp_has_last_stage:
                own = share.detach() * ranks
                self.loss = own if self.loss is None else self.loss + own
            return share

        @functools.wraps(update)
        def judged(*words: Any, **named: Any) -> None:
            run.phase(Phase.OPTIMIZER)
            norm = self.grad_norm
            if guard is not None:
                # One that is not finite is a fault, which is gone back for.
                known = norm if norm is not None and bool(torch.isfinite(norm)) else None
                if run.should_skip(trainer.step, grad_norm=known, guard=guard):
                    return
            update(*words, **named)

        trainer.forward_backward_step = noted
        trainer.optimizers.step = judged
        distributed_utils.clip_grad_norm_ = _telling(distributed_utils.clip_grad_norm_, self)
        if trainer.config.validator.enable:
            trainer.validator.validate = _between(trainer.validator.validate, run)


def _telling(clip: Callable[..., Tensor], values: _Values) -> Callable[..., Tensor]:
    """`clip`, which tells `values` what norm it found."""

    @functools.wraps(clip)
    def told(*words: Any, **named: Any) -> Tensor:
        values.grad_norm = norm = clip(*words, **named)
        return norm

    return told


def _between(validate: Callable[..., Any], run: Run) -> Callable[..., Any]:
    """`validate`, in which no step is to be expected."""

    @functools.wraps(validate)
    def told(*words: Any, **named: Any) -> Any:
        with run.during(Phase.IDLE):
            return validate(*words, **named)

    return told
