"""Transformers' `Trainer` under Holdfast: `Trainer(..., callbacks=[HoldfastCallback()])`, and nothing else.

A callback is told of steps but of no loss before it is averaged, and it is not asked what to resume from: by its
first event the Trainer has loaded. So the first `HoldfastCallback` puts itself around `Trainer.train`, for
trainers that have one among their callbacks and no others. From there it chooses the checkpoint, listens to the
Trainer's `Accelerator`, and marks what `_save_checkpoint` has saved. That is the smallest way that works with a
plain `trainer.train()`.

Without a Holdfast launcher a `train()` begins where it would without the callback.

Source: https://huggingface.co/docs/transformers/main_classes/callback,
https://huggingface.co/docs/transformers/main_classes/trainer
"""

import functools
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, sort_checkpoints

from holdfast.api.errors import InvalidInput, Problem
from holdfast.integrations.checkpointfolders import CheckpointFolders, told_by_all
from holdfast.integrations.globalbatch import share_of
from holdfast.integrations.life import batch_of_life
from holdfast.integrations.observed import Observed
from holdfast.trainer import GuestRun, Phase, Run, SpikeGuard, joined

logger = logging.getLogger(__name__)

STATE_NAME: Final = "trainer_state.json"
Resume = str | os.PathLike[str] | bool | None
_AROUND: Final = "_holdfast_is_around"


class HoldfastCallback(TrainerCallback):
    """Steps, losses, norms, tokens and phases are seen; saves may be asked for; `train()` goes on from the newest
    complete checkpoint of its `output_dir` that the job may use.

    Args:
        guard: leaves out steps whose gradient norm is a spike. Unasked there is one where the job's
            `faultPolicy.loss` says how far a norm may go. It reduces one number a step, and waits for the device.
        global_batch: samples of a step over all ranks. Unasked it is what the job's first round had. In a world of
            another size the gradient accumulation changes, and the batch of a device where it must; a world that
            does not divide it raises InvalidInput, with the sizes that would.
    """

    def __init__(self, *, guard: SpikeGuard | None = None, global_batch: int | None = None) -> None:
        self._guard = guard
        self._global_batch = global_batch
        self._training: _Training | None = None
        _put_around(Trainer)

    @contextmanager
    def around(self, trainer: Any, resume: Resume) -> Iterator[Resume]:
        """While the `with` block runs `trainer` trains; it is to begin with the checkpoint that this gives."""
        training = _Training(trainer, joined(), self._guard, self._global_batch)
        training.enter()
        with training.listening():
            chosen = training.choose(resume)
            self._training = training
            try:
                yield chosen
            finally:
                self._training = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        if self._training is None:
            logger.warning("training began without Trainer.train: nothing is published of it")
        else:
            self._training.begin()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        if self._training is not None:
            self._training.run.phase(Phase.FORWARD)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> TrainerControl:
        if self._training is not None and self._training.completed(state.global_step):
            control.should_save = True
        return control

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        if self._training is not None:
            self._training.run.phase(Phase.IDLE)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        if self._training is not None:
            self._training.end()


class _Training:
    """One call of `Trainer.train`."""

    def __init__(self, trainer: Any, run: Run, guard: SpikeGuard | None, global_batch: int | None) -> None:
        args, part = trainer.args, run.assignment
        self.run = run
        self._trainer = trainer
        self._is_healed = bool(part.restore.owner)  # by a watchdog, which names the life of the job
        self._guard = guard or (SpikeGuard(part) if part.spikes is not None else None)
        self._global_batch = global_batch
        self._observed = Observed(trainer.accelerator, run, self._guard)
        self._wanted: int | None = None
        self._folders = CheckpointFolders(
            run, Path(args.output_dir), prefix=f"{PREFIX_CHECKPOINT_DIR}-", marks_here=args.should_save
        )

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While the `with` block runs the trainer's steps are listened to, and its saves marked."""
        trainer = self._trainer
        given_step, given_save = trainer.training_step, trainer._save_checkpoint

        def training_step(model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
            self._observed.took(inputs)
            return given_step(model, inputs, *more, **named)

        by_name = {"training_step": training_step, "_save_checkpoint": self._saving(given_save)}
        if self._is_healed:
            by_name["_run_epoch"] = self._unless_done(trainer._run_epoch)
        with self._observed, ExitStack() as replaced:
            for name, by in by_name.items():
                setattr(trainer, name, by)
                replaced.callback(trainer.__dict__.pop, name, None)
            yield

    def choose(self, resume: Resume) -> Resume:
        """What training begins with, the same on all ranks; `resume` is what the script says.

        Raises NothingToRestore when the job has something to go back to and it is not there; InvalidInput when the
        global batch cannot be kept, and when checkpoints hold no optimizer: the Trainer would go on from one with
        a new optimizer, and a learning rate as at the start, without a word.
        """
        if self._is_healed and self._trainer.args.save_only_model:
            fix = "write False: from a model alone no training can be gone on with after a fault"
            raise InvalidInput(Problem(field="save_only_model", value=True, fix=fix))
        if self._global_batch is not None or self._is_healed:
            self._share_batch()
        if not self._is_healed:
            return resume
        named = os.fspath(resume) if isinstance(resume, str | os.PathLike) else None
        chosen, unknown = self._folders.choose(begins_with=named is not None, takes_unknown=resume is True)
        if chosen is not None:
            if self._guard is not None and chosen.mark.spikes is not None:
                self._guard.load_state_dict(chosen.mark.spikes)
            self._folders.begin(chosen.step)
            return str(self._folders.folder(chosen.step))
        begins = str(self._folders.folder(unknown)) if unknown is not None else named
        self._folders.begin(None if begins is None else _step_of(Path(begins)))
        return begins

    def begin(self) -> None:
        """Model and optimizer stand, as they were in the checkpoint."""
        trainer = self._trainer
        self._observed.step = trainer.state.global_step
        self._observed.guards(trainer.optimizer)
        # What ranks hold in plain tensors without being replicas is compared with nobody's.
        accelerator = trainer.accelerator
        is_sharded = trainer.is_deepspeed_enabled or (trainer.is_fsdp_enabled and not accelerator.is_fsdp2)
        self.run.watch(trainer.model, part=f"rank {self.run.assignment.rank}" if is_sharded else "")

    def completed(self, step: int) -> bool:
        """`step` is complete. Whether the framework is to save it, the same on all ranks."""
        self._observed.completed(step)
        self.run.phase(Phase.DATA)  # the Trainer's loader is asked without a word
        wanted, every = self.run.save_due(step), self.run.assignment.save_every
        if wanted is not None:
            self._wanted = wanted
        return wanted is not None or (every is not None and step % every == 0)

    def enter(self) -> None:
        """`Trainer.train` was called; `end` follows when it has made its last step."""
        if isinstance(self.run, GuestRun):
            self.run.training_begins()

    def end(self) -> None:
        """The last step is complete, and saved where it is to be."""
        self.run.phase(Phase.IDLE)
        if isinstance(self.run, GuestRun):
            self.run.leave()

    def _unless_done(self, given: Callable[..., object]) -> Callable[..., None]:
        """The Trainer looks whether it has made `max_steps` after a step only: one that goes on behind the last
        step, as when the script failed after it, would make another. And the epoch that goes on has its own order.
        """
        trainer = self._trainer

        def run_epoch(*arguments: Any, **named: Any) -> None:
            if trainer.state.global_step < trainer.state.max_steps:
                # The loader that passes batches over has the sampler of this one, and does not tell it the epoch.
                loader: Any = named.get("train_dataloader")
                if hasattr(loader, "set_epoch") and "epoch" in named:
                    loader.set_epoch(named["epoch"])
                given(*arguments, **named)
                return
            says = "nothing is left to train step=%d max_steps=%d output_dir=%s"
            logger.warning(says, trainer.state.global_step, trainer.state.max_steps, trainer.args.output_dir)
            trainer.control.should_training_stop = True

        return run_epoch

    def _saving(self, given: Callable[..., object]) -> Callable[..., None]:
        def save(*arguments: Any, **named: Any) -> None:
            args, step = self._trainer.args, self._trainer.state.global_step
            self.run.phase(Phase.CHECKPOINT)
            began_s = self._folders.saves(step)
            # Older checkpoints stay until this one is marked.
            limit, args.save_total_limit = args.save_total_limit, None
            try:
                given(*arguments, **named)
            finally:
                args.save_total_limit = limit

            def tidy() -> None:
                if args.should_save:
                    best = self._trainer.state.best_model_checkpoint
                    names = [Path(each).name for each in sort_checkpoints(args.output_dir, use_mtime=True)]
                    self._folders.rotate(names, limit, None if best is None else Path(best).name)

            wanted, self._wanted = self._wanted, None
            spikes = None if self._guard is None else self._guard.state_dict()
            self._folders.saved(step, began_s, wanted=wanted, spikes=spikes, tidy=tidy)
            self.run.phase(Phase.DATA)

        return save

    def _share_batch(self) -> None:
        """Give each rank its share of the global batch that the job has had from its first round on."""
        trainer, args, part = self._trainer, self._trainer.args, self.run.assignment
        if args.accelerator_config.split_batches or trainer.is_deepspeed_enabled:
            return  # the one batch is the global one; DeepSpeed has taken its own sizes from its configuration
        said = trainer.get_total_train_batch_size(args)
        ranks = said // (trainer._train_batch_size * args.gradient_accumulation_steps)
        wanted = self._global_batch
        if wanted is None:
            owner, first = part.restore.owner, part.rank == 0
            mine = batch_of_life(Path(args.output_dir), owner=owner, said=said) if first else said
            wanted = told_by_all(mine)[0]
        share = share_of(wanted, world_size=ranks, micro_batch=trainer._train_batch_size)
        if wanted == said:
            return
        logger.warning(
            "the global batch stays global_batch=%d ranks=%d batch_of_a_device=%d gradient_accumulation=%d",
            wanted,
            ranks,
            share.micro_batch,
            share.accumulation,
        )
        args.gradient_accumulation_steps = share.accumulation
        args.per_device_train_batch_size = share.micro_batch // max(1, args.n_gpu)
        trainer._train_batch_size = share.micro_batch


def _put_around(trainers: Any) -> None:
    """Let `train` of trainers with a HoldfastCallback ask it. Once is enough."""
    given = trainers.train
    if getattr(given, _AROUND, False):
        return

    @functools.wraps(given)
    def train(self: Any, resume_from_checkpoint: Any = None, *more: Any, **named: Any) -> Any:
        ours = [each for each in self.callback_handler.callbacks if isinstance(each, HoldfastCallback)]
        is_trial = bool(more and more[0]) or bool(named.get("trial"))
        if not ours or is_trial:  # the trials of a search begin one after the other, each in its own folder
            return given(self, resume_from_checkpoint, *more, **named)
        with ours[0].around(self, resume_from_checkpoint) as chosen:
            return given(self, chosen, *more, **named)

    setattr(train, _AROUND, True)
    trainers.train = train


def _step_of(folder: Path) -> int | None:
    """The step after which a checkpoint of a Trainer goes on; None when it does not say."""
    try:
        return int(json.loads((folder / STATE_NAME).read_bytes())["global_step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
