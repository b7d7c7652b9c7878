"""Training against inference: the same tokens by two implementations."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from probed_models import SAMPLES, STEPS, WIDTH, Attention, Autocast, Model, one_thread, seeded, subject, tokens
from torch import Tensor, nn

from holdfast.trainer.probes import Soundness, Subject, agreement
from holdfast.trainer.probes.rounding import tolerance

__all__ = ["one_thread"]


def second(change: Callable[[Any], None] = lambda _: None) -> tuple[nn.Module, nn.Module]:
    model = seeded(lambda: Model(attention=Attention(dropout=0.2)))
    other = copy.deepcopy(model)
    change(other)
    return model, other


def test_an_equal_implementation_agrees_with_dropout_in_training() -> None:
    model, other = second()
    found = agreement(subject(model, reference=other))
    assert (found.verdict, found.figure) == (Soundness.SOUND, 0.0)
    assert f"{SAMPLES * (STEPS - 1)} log-probabilities" in found.says
    assert other.training


def test_another_epsilon_is_found_and_the_norm_is_named() -> None:
    model, other = second(lambda each: setattr(each.norm, "eps", 0.1))
    found = agreement(subject(model, reference=other))
    assert (found.verdict, found.where) == (Soundness.SUSPECT, "norm")
    assert "first in norm (LayerNorm)" in found.says
    assert "epsilon" in found.change


def test_another_mask_in_a_function_is_found_in_the_module_around_it() -> None:
    model, other = second(lambda each: setattr(each.attention, "diagonal", 3))
    assert agreement(subject(model, reference=other)).where == "attention"


def test_a_copy_in_bfloat16_agrees_up_to_its_rounding() -> None:
    model, other = second(nn.Module.bfloat16)
    found = agreement(subject(model, reference=other))
    assert found.verdict is Soundness.SOUND
    assert found.figure is not None
    assert found.figure > 0.0


def test_a_model_under_autocast_agrees_up_to_the_rounding_inside_of_it() -> None:
    model, other = second()
    found = agreement(subject(Autocast(model), reference=lambda inputs: other.eval()(inputs)))
    assert found.verdict is Soundness.SOUND
    assert found.figure is not None
    assert found.figure > tolerance(torch.float32)


def test_a_function_is_compared_without_its_layers() -> None:
    model, other = second(lambda each: each.head.bias.data.mul_(3.0))
    exact = subject(model, reference=lambda inputs: copy.deepcopy(model).eval()(inputs))
    assert agreement(exact).verdict is Soundness.SOUND
    found = agreement(subject(model, reference=lambda inputs: other.eval()(inputs)))
    assert (found.verdict, found.where) == (Soundness.SUSPECT, "")
    assert "a function shows no layers" in found.says


def test_other_names_are_told() -> None:
    model, other = second(lambda each: each.head.bias.data.mul_(3.0))
    found = agreement(subject(model, reference=nn.Sequential(nn.Identity(), other)))
    # Its outermost module has the name of ours, empty, and is all that can be compared.
    assert (found.verdict, found.where) == (Soundness.SUSPECT, "")
    assert "first in the model (Model)" in found.says


def test_targets_are_the_tokens_and_those_below_0_are_left_out() -> None:
    model, other = second(lambda each: setattr(each.attention, "diagonal", 3))
    targets = torch.full((SAMPLES, STEPS), -100)
    targets[:, -1] = 1  # the last position sees the same in both
    found = agreement(subject(model, targets=targets, reference=other))
    assert (found.verdict, found.says[:2]) == (Soundness.SOUND, "2 ")


def test_forward_and_time_first_hold_for_both() -> None:
    def turned(model: nn.Module, inputs: Tensor) -> Any:
        return model(inputs.T).transpose(0, 1)

    model, other = second()
    found = agreement(subject(model, inputs=tokens().T, forward=turned, time_dim=0, reference=other))
    assert found.verdict is Soundness.SOUND


numbers = torch.randn(SAMPLES, STEPS, WIDTH, generator=torch.Generator().manual_seed(3))
UNKNOWN: dict[str, tuple[Callable[[], Subject], str]] = {
    "no reference": (lambda: subject(seeded(Model)), "no second implementation"),
    "no tokens": (lambda: subject(seeded(Model), inputs=numbers, reference=seeded(Model)), "no tokens to compare"),
    "all left out": (
        lambda: subject(seeded(Model), targets=torch.full((SAMPLES, STEPS), -1), reference=seeded(Model)),
        "no tokens to compare",
    ),
    "no logits": (lambda: subject(seeded(Model), reference=lambda _: torch.zeros(3)), "no logits of these tokens"),
    "too few words": (
        lambda: subject(seeded(Model), reference=lambda _: torch.zeros(SAMPLES, STEPS, 3)),
        "no logits of these tokens",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_compared_is_unknown(name: str) -> None:
    make, why = UNKNOWN[name]
    found = agreement(make())
    assert found.verdict is Soundness.UNKNOWN
    assert why in found.says
