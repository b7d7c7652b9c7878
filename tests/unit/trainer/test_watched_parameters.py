"""Whether the parameters are finite once the last step is trained."""

import math

import pytest
import torch
from trainer_builders import assignment

from holdfast.api.rankrecord import UNKNOWN_INT
from holdfast.trainer.proofs import Watched
from holdfast.trainer.record import open_record


def watched(model: torch.nn.Module) -> Watched:
    record = open_record(None, UNKNOWN_INT)
    return Watched(model, assignment(), part="", record=record, corruptible=None)


@pytest.mark.parametrize(
    ("value", "is_finite"), [(1.0, True), (3e38, True), (math.nan, False), (-math.inf, False)]
)
def test_one_parameter_in_training_decides(value: float, is_finite: bool) -> None:
    model = torch.nn.Linear(3, 3)
    model.weight.data[1, 1] = value
    assert watched(model).is_finite() is is_finite
    model.weight.requires_grad = False
    assert watched(model).is_finite()


def test_what_cannot_be_looked_at_is_not_known() -> None:
    looked = watched(torch.nn.Linear(3, 3, device="meta"))
    assert looked.is_finite() is None
    looked.close()
    assert looked.is_finite() is None


class WithoutALength(torch.nn.Linear):
    """As what `torch.compile` returns of a model without a length."""

    def __len__(self) -> int:
        raise TypeError("WithoutALength does not support len()")


class OfLengthZero(torch.nn.Linear):
    """As a model that is a container of what it has not been given yet."""

    def __len__(self) -> int:
        return 0


class Undecided(torch.nn.Linear):
    def __bool__(self) -> bool:
        raise RuntimeError("a model is neither true nor false")


@pytest.mark.parametrize("kind", [WithoutALength, OfLengthZero, Undecided])
def test_a_model_is_looked_at_whatever_its_truth_value(kind: type[torch.nn.Linear]) -> None:
    model = kind(3, 3)
    assert watched(model).is_finite()
    model.weight.data[1, 1] = math.nan
    assert not watched(model).is_finite()
