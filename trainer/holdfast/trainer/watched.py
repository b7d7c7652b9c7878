"""What is to be done after each step with the model that a round trains."""

from collections.abc import Callable
from pathlib import Path

from torch.nn import Module

from holdfast.api.control import Assignment
from holdfast.trainer.corruption import Corruption
from holdfast.trainer.replica import Publish, Replica

AfterStep = Callable[[int], None]
"""Called with the number of the step that is complete."""


def after_step(
    model: Module, assignment: Assignment, *, part: str, publish: Publish, corruptible: Path | None
) -> tuple[AfterStep, ...]:
    """Nothing, as a rule; fingerprints when the assignment asks for them.

    `corruptible` is the directory in which a drill leaves its requests: what it corrupts is fingerprinted after.
    """
    todo: list[AfterStep] = []
    if corruptible is not None:
        todo.append(Corruption(corruptible, assignment.rank, model).completed)
    if assignment.fingerprint_every > 0:
        todo.append(Replica(model, every=assignment.fingerprint_every, part=part, publish=publish).completed)
    return tuple(todo)
