"""The same step twice, and the same batch in more parts."""

from typing import Any

import numpy as np
import pytest
import torch
from probed_models import (
    WIDTH,
    Attention,
    Autocast,
    Counting,
    CountingBuffer,
    Model,
    Noise,
    TimeNorm,
    mean_loss,
    one_thread,
    seeded,
    subject,
    tokens,
    trainable,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from holdfast.trainer.probes import Soundness, Subject, another_world_size, causality, same_step_twice
from holdfast.trainer.probes.rounding import tolerance
from holdfast.trainer.probes.subject import kept_as_found

__all__ = ["one_thread"]


class CountingBackwards(torch.autograd.Function):
    """Passes on what it gets, and back another share of it each time."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        CountingBackwards.calls += 1
        return grad * (1.0 + 1e-6 * CountingBackwards.calls)


class Backwards(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = CountingBackwards.apply(self.line(hidden))  # type: ignore[no-untyped-call]
        return found


def test_a_step_with_dropout_and_statistics_is_the_same_twice() -> None:
    model = seeded(lambda: Model(norm=TimeNorm(), attention=Attention(dropout=0.3)))
    found = same_step_twice(trainable(model))
    assert (found.verdict, found.figure) == (Soundness.SOUND, 0.0)
    assert all(each.grad is None for each in model.parameters())


def test_state_outside_of_torch_is_found_and_its_module_named() -> None:
    found = same_step_twice(trainable(seeded(lambda: Model(mixer=Counting()))))
    assert (found.verdict, found.where) == (Soundness.SUSPECT, "mixer")
    assert "first in the forward pass of mixer" in found.says
    assert "use_deterministic_algorithms" in found.change


def test_numbers_that_numpy_draws_are_drawn_again_and_its_own_go_on_where_they_were() -> None:
    np.random.seed(7)
    expected = np.random.rand()
    np.random.seed(7)
    assert same_step_twice(trainable(seeded(lambda: Model(mixer=Noise())))).verdict is Soundness.SOUND
    assert causality(trainable(seeded(lambda: Model(mixer=Noise())))).verdict is Soundness.SOUND
    assert np.random.rand() == expected


@pytest.mark.parametrize("probe", [same_step_twice, another_world_size, causality])
def test_a_buffer_that_is_replaced_is_put_back(probe: Any) -> None:
    counting = CountingBuffer()
    before = counting.calls
    model = seeded(lambda: Model(mixer=counting))
    assert probe(trainable(model)).verdict is Soundness.SOUND
    assert counting.calls is before
    assert float(before) == 0.0


def test_a_cache_that_has_grown_stays_as_its_module_believes_it_is() -> None:
    counting = CountingBuffer()
    with kept_as_found(counting) as renew:
        counting.calls = torch.zeros(3)
        renew()
    assert counting.calls.shape == (3,)
    with kept_as_found(counting):
        del counting.calls
    assert counting.calls.shape == (3,)


def wide(samples: int = 8) -> Subject:
    """Large enough for gradients that are rounded in other places to differ."""
    return trainable(seeded(lambda: Autocast(Model())), samples)


def test_what_is_computed_in_a_narrow_dtype_may_differ_by_its_rounding() -> None:
    found = another_world_size(wide())
    assert found.verdict is Soundness.SOUND
    assert found.figure is not None
    assert found.figure > tolerance(torch.float32)
    wrong = another_world_size(trainable(seeded(lambda: Autocast(Model(norm=TimeNorm()))), 8))
    assert wrong.verdict is Soundness.SUSPECT


def test_a_backward_pass_that_differs_alone_names_the_first_parameter_on_the_way_back() -> None:
    found = same_step_twice(trainable(seeded(lambda: Model(mixer=Backwards()))))
    assert found.verdict is Soundness.SUSPECT
    assert found.where.startswith("mixer.line.")
    assert "in the backward pass, at mixer.line." in found.says
    assert found.figure is not None
    assert 0.0 < found.figure < 1.0  # the head comes before it on the way back


def test_a_loss_that_differs_alone_is_told() -> None:
    counted: list[int] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        counted.append(1)
        return mean_loss(outputs, targets) + len(counted)

    found = same_step_twice(trainable(seeded(Model), loss=loss))
    assert (found.verdict, found.where) == (Soundness.SUSPECT, "")
    assert "first in the loss alone" in found.says


def test_parts_of_a_batch_give_the_gradient_of_the_whole() -> None:
    model = seeded(lambda: Model(attention=Attention(dropout=0.3)))
    found = another_world_size(trainable(model))
    assert found.verdict is Soundness.SOUND
    assert found.figure is not None
    assert found.figure < 1e-5
    assert another_world_size(trainable(model), pieces=4).verdict is Soundness.SOUND


def test_activations_that_are_computed_anew_on_the_way_back_have_no_dropout_either() -> None:
    class Anew(Attention):
        def forward(self, hidden: Tensor) -> Tensor:
            found = checkpoint(super().forward, hidden, use_reentrant=False)
            assert isinstance(found, Tensor)
            return found

    model = seeded(lambda: Model(attention=Anew(dropout=0.3)))
    assert same_step_twice(trainable(model)).verdict is Soundness.SOUND
    assert another_world_size(trainable(model)).verdict is Soundness.SOUND


def summed(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum")


def test_a_sum_is_added_and_one_that_is_taken_for_a_mean_is_wrong_by_a_factor() -> None:
    model = seeded(Model)
    assert another_world_size(trainable(model, loss=summed, loss_is_mean=False)).verdict is Soundness.SOUND
    wrong = another_world_size(trainable(model, loss=summed))
    assert (wrong.verdict, wrong.where) == (Soundness.SUSPECT, "")
    assert "0.5 times the gradient of the whole" in wrong.says
    assert "loss_is_mean=False" in wrong.change


def test_a_mean_over_targets_that_are_not_evenly_spread_is_found() -> None:
    subject = trainable(seeded(Model))
    subject.targets[
        :2, 3:
    ] = -100  # what cross entropy leaves out: the first part has a fifth of the others' targets
    found = another_world_size(subject)
    assert found.verdict is Soundness.SUSPECT
    assert found.where in dict(subject.model.named_parameters())
    assert "divide by the number of targets of the whole batch" in found.change


def test_batch_statistics_are_found() -> None:
    found = another_world_size(trainable(seeded(lambda: Model(norm=TimeNorm()))))
    assert found.verdict is Soundness.SUSPECT
    assert found.figure is not None
    assert found.figure > 1e-2


def test_a_parameter_that_one_part_alone_reaches_is_compared_too() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(WIDTH, WIDTH)

        def forward(self, hidden: Tensor) -> Tensor:
            return self.line(hidden) if len(hidden) < 4 else hidden

    found = another_world_size(trainable(seeded(lambda: Model(mixer=Gated()))))
    assert found.verdict is Soundness.SUSPECT


@pytest.mark.parametrize("probe", [same_step_twice, another_world_size])
def test_without_a_loss_or_a_gradient_it_is_unknown(probe: Any) -> None:
    model = seeded(Model)
    assert probe(trainable(model, loss=None)).says == "no loss is given"
    frozen = trainable(model, loss=lambda *_: torch.zeros((), requires_grad=True))
    assert probe(frozen).verdict is Soundness.UNKNOWN


def test_a_batch_that_cannot_be_cut_is_unknown() -> None:
    one = subject(seeded(Model), inputs=tokens(1), targets=tokens(1), loss=mean_loss)
    found = another_world_size(one)
    assert (found.verdict, found.says) == (Soundness.UNKNOWN, "1 samples cannot be cut into 2 equal parts")
