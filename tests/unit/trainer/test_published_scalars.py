import math

import pytest
import torch

from holdfast.trainer.scalar import Scalar


@pytest.mark.parametrize(
    "given",
    [2.5, torch.tensor(2.5), torch.tensor([2.5]), torch.tensor(2.5, dtype=torch.bfloat16)],
    ids=["float", "tensor", "one element", "bfloat16"],
)
def test_a_number_on_the_host_is_read_at_once(given: float | torch.Tensor) -> None:
    assert Scalar().take(given) == 2.5


def test_a_loss_that_still_has_its_graph_is_read_without_a_warning() -> None:
    assert Scalar().take(torch.tensor(2.0, requires_grad=True) * 2) == 4.0


def test_an_integer_is_a_number() -> None:
    assert Scalar().take(3) == 3.0


def test_what_was_not_given_is_unknown_even_after_something_was() -> None:
    scalar = Scalar()
    scalar.take(1.0)
    assert math.isnan(scalar.take(None))


@pytest.mark.parametrize("given", [math.nan, torch.tensor(math.nan)], ids=["float", "tensor"])
def test_a_loss_that_is_no_number_is_not_taken_for_one_that_was_not_given(given: float | torch.Tensor) -> None:
    assert Scalar().take(given) == math.inf
