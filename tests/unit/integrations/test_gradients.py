"""The gradient of a step before the optimizer takes it."""

import math

import pytest
import torch

from holdfast.integrations.gradients import drop, parameters_of, total_norm


def test_the_norm_is_over_all_parameters_that_have_a_gradient() -> None:
    model = torch.nn.Linear(2, 1)
    assert total_norm(model, model.parameters()) is None
    model.weight.grad = torch.tensor([[3.0, 0.0]])
    assert float(total_norm(model, model.parameters()) or 0) == 3.0
    model.bias.grad = torch.tensor([4.0])
    assert float(total_norm(model, model.parameters()) or 0) == 5.0
    model.bias.grad = torch.tensor([math.nan])
    assert math.isnan(float(total_norm(model, model.parameters()) or 0))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_step_whose_gradient_was_dropped_changes_nothing(kind: type[torch.optim.Optimizer]) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = kind(model.parameters(), lr=0.1, weight_decay=0.5)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    moments = str(optimizer.state_dict()["state"])
    model(torch.ones(1, 2)).sum().backward()
    drop(optimizer)
    optimizer.step()
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    assert str(optimizer.state_dict()["state"]) == moments
    assert len(parameters_of(optimizer)) == 2
