"""A loop over a framework's engine that saves and loads itself: DeepSpeed's, Megatron's, or one of your own.

loop = FrameworkLoop(format="deepspeed", save=engine.save_checkpoint, load=engine.load_checkpoint, every_steps=100)
for step in loop.steps(until=10_000):
    loss = engine(batch_of(step))
    engine.backward(loss)
    engine.step()
    loop.measured(loss=loss, grad_norm=engine.get_global_grad_norm())
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.rankrecord import UNKNOWN_INT, Phase
from holdfast.checkpoint.foreign import ForeignCheckpoints
from holdfast.trainer import GuestRun, joined

Measured = float | torch.Tensor | None


class FrameworkLoop:
    """One rank's loop. Make it on all ranks alike, once the process group and the engine stand.

    `save` has the engine write its state into an empty folder that all ranks see, `load` has it take the state
    from there; both are called on all ranks. `every_steps` and `keep` are as in `Checkpointer`, `uri` is a
    directory (by default where the job says). What of the data was seen is the loop's to know from the number of
    the step.

    Raises InvalidInput for what is not accepted, as when nobody names a directory.
    """

    def __init__(
        self,
        *,
        format: str,
        save: Callable[[Path], object],
        load: Callable[[Path], object],
        uri: str | None = None,
        every_steps: int | None = None,
        keep: int | None = None,
    ) -> None:
        if every_steps is not None and every_steps < 1:
            raise InvalidInput(Problem(field="every_steps", value=every_steps, fix="write at least 1"))
        self.run = joined()
        self._save, self._load, self._every_steps = save, load, every_steps
        self._checkpoints = ForeignCheckpoints(self.run, format=format, uri=uri, keep=keep)
        self._loss: Measured = None
        self._grad_norm: Measured = None
        self._tokens = UNKNOWN_INT

    def measured(self, *, loss: Measured = None, grad_norm: Measured = None, tokens: int = UNKNOWN_INT) -> None:
        """What the step that is under way has computed, as `Run.step` takes it."""
        self._loss, self._grad_norm, self._tokens = loss, grad_norm, tokens

    def steps(self, *, until: int) -> Iterator[int]:
        """Load the newest complete checkpoint, then yield the number of each step up to `until`. A step is
        complete when the loop comes back for the next; then it is published, and saved where that is due or
        wanted. The last one is saved in any case.

        Raises what `ForeignCheckpoints` raises, and RoundEnded when the round is over.
        """
        run, folder = self.run, self._checkpoints.restore(until=until)
        if folder is not None:
            self._load(folder)
        saved = self._checkpoints.restored_step or 0
        cadences = [each for each in (self._every_steps, run.assignment.save_every) if each is not None]
        try:
            for step in range(saved + 1, until + 1):
                run.phase(Phase.FORWARD)
                yield step
                run.step(step, loss=self._loss, grad_norm=self._grad_norm, tokens=self._tokens)
                self._loss, self._grad_norm, self._tokens = None, None, UNKNOWN_INT
                wanted = run.save_due(step)
                if wanted is not None or step == until or any(step % each == 0 for each in cadences):
                    self._checkpoints.save(step, self._save, wanted=wanted)
        except Exception as error:
            if isinstance(run, GuestRun):
                run.failed(error)
            raise
        run.phase(Phase.IDLE)
        self._checkpoints.close()
        if isinstance(run, GuestRun):
            run.leave()
