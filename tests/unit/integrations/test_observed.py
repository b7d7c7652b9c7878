"""What a loop through an Accelerator tells of a step: its own loss over micro batches, the norm, the tokens."""

import math
from typing import Any

import pytest
import torch

from holdfast.integrations.observed import Observed, tokens_in
from holdfast.trainer import Phase, SpikeGuard


class Told:
    """Of a Run, what is used here."""

    def __init__(self, *, skips: bool = False) -> None:
        self.steps: list[dict[str, Any]] = []
        self.phases: list[Phase] = []
        self.asked: list[int] = []
        self._skips = skips

    def step(self, step: int, **said: Any) -> None:
        self.steps.append({"step": step, **said})

    def phase(self, phase: Phase) -> None:
        self.phases.append(phase)

    def should_skip(self, step: int, **said: Any) -> bool:
        self.asked.append(step)
        return self._skips


class Accelerator:
    """Of Accelerate's, what is used here."""

    gradient_accumulation_steps = 2
    sync_gradients = True

    def __init__(self) -> None:
        self.given: list[torch.Tensor] = []

    def backward(self, loss: torch.Tensor) -> None:
        self.given.append(loss)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        return torch.tensor(3.0)


class Optimizer:
    step_was_skipped = False

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        self.steps += 1


def test_a_step_is_told_with_the_mean_over_its_micro_batches_and_nothing_is_left_behind() -> None:
    run, accelerator = Told(), Accelerator()
    with Observed(accelerator, run, None) as observed:  # type: ignore[arg-type]
        for value in (1.0, 2.0):
            observed.took({"input_ids": torch.zeros(2, 5)})
            accelerator.backward(torch.tensor(value, requires_grad=True))
        accelerator.clip_grad_norm_([], 1.0)
        observed.completed(1)
        observed.completed(2)
    first, second = run.steps
    assert (first["step"], float(first["loss"]), float(first["grad_norm"])) == (1, 1.5, 3.0)
    assert (first["tokens"], first["skipped"]) == (20, False)
    assert (second["loss"], second["grad_norm"], second["tokens"]) == (None, None, -1)
    assert "backward" not in vars(accelerator)
    assert [float(loss.detach()) for loss in accelerator.given] == [1.0, 2.0]


@pytest.mark.parametrize("skips", [False, True])
def test_the_guard_is_asked_before_an_optimizer_steps(skips: bool) -> None:
    run, accelerator, optimizer = Told(skips=skips), Accelerator(), Optimizer()
    with Observed(accelerator, run, SpikeGuard(), step=6) as observed:  # type: ignore[arg-type]
        observed.guards(optimizer)
        accelerator.sync_gradients = False
        optimizer.step()
        assert (run.asked, observed.has_stepped) == ([], False)
        accelerator.sync_gradients = True
        optimizer.step()
    assert run.asked == [7]
    assert optimizer.steps == (1 if skips else 2)


def test_a_step_that_a_scaler_left_out_is_told_as_such() -> None:
    run, accelerator, optimizer = Told(), Accelerator(), Optimizer()
    with Observed(accelerator, run, None) as observed:  # type: ignore[arg-type]
        observed.guards(optimizer)
        accelerator.backward(torch.tensor(math.inf, requires_grad=True))
        optimizer.step_was_skipped = True
        optimizer.step()
        observed.completed(1)
    assert run.steps[0]["skipped"] is True


def test_tokens_are_those_of_input_ids_or_unknown() -> None:
    assert tokens_in({"input_ids": torch.zeros(3, 4)}) == 12
    assert tokens_in({"pixels": torch.zeros(3, 4)}) == -1
    assert tokens_in((torch.zeros(3),)) == -1
