"""A group that comes back is equal to its peers, whatever changed while it was away."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from groupnet import LIMIT_S, Faked, Group, Net, Stage, equal, part
from torch import Tensor, nn

from holdfast.api.control import AtTheDoor
from holdfast.api.errors import InvalidInput
from holdfast.trainer import Replicas, replicas


@pytest.fixture(autouse=True)
def net(monkeypatch: pytest.MonkeyPatch) -> Net:
    Faked.net = Net()
    monkeypatch.setattr(replicas, "Across", Faked)
    return Faked.net


class Deep(Group):
    """Of three layers, of which those at `used` are used in a step."""

    def __init__(self, at: int, first: Any) -> None:
        super().__init__(at, first, steps=9)
        self.layers = [nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)]
        self.model = nn.Sequential(*self.layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.used: Callable[[int], tuple[int, ...]] = lambda step: (0, 1, 2)

    def backward(self, mine: Replicas) -> None:
        used = [self.layers[at].weight for at in self.used(mine.step + 1)]
        cast(Tensor, sum(((each - mine.index).square().sum() for each in used), torch.zeros(()))).backward()


def one_and_one_that_comes_back() -> tuple[Deep, Deep]:
    return Deep(0, part(2, 0, 1)), Deep(7, part(2, None, 1, epoch=2))


def train(one: Deep, back: Deep) -> Stage:
    """The second comes back at the sixth step of nine."""
    one.holds_at = 5
    stage = Stage(one, back)
    stage.wait(lambda: back.said == [AtTheDoor(2)] and one.has_done(4)())
    one.stay.go_on(part(3, 0, 2))
    back.stay.go_on(part(3, 1, 2, epoch=2))
    one.gate.set()
    return stage


def test_what_only_its_warm_up_step_gave_a_gradient_of_is_left_alone() -> None:
    one, back = one_and_one_that_comes_back()
    one.used = back.used = lambda step: (0, 2) if step == 1 else (1, 2)
    assert train(one, back).ends() == [9, 9]
    assert equal(one, back)


@pytest.mark.parametrize("is_zeroed", [True, False])
def test_what_was_frozen_while_it_was_away_is_left_alone(is_zeroed: bool) -> None:
    one, back = one_and_one_that_comes_back()
    for group in (one, back):
        zero_grad = group.optimizer.zero_grad
        group.optimizer.zero_grad = lambda zero=zero_grad: zero(set_to_none=not is_zeroed)  # type: ignore[method-assign]
    one.before = lambda step: one.layers[0].requires_grad_(step < 3)  # type: ignore[method-assign]
    assert train(one, back).ends() == [9, 9]
    assert not back.layers[0].weight.requires_grad
    assert equal(one, back)


def test_parameters_that_an_optimizer_was_given_meanwhile_are_given_to_its_own() -> None:
    one, back = one_and_one_that_comes_back()
    for group in (one, back):
        group.optimizer = torch.optim.AdamW(group.layers[2].parameters(), lr=0.1)

    def give(step: int) -> None:
        if step == 3:
            one.optimizer.add_param_group({"params": list(one.layers[0].parameters()), "lr": 0.01})

    one.before = give  # type: ignore[method-assign]
    assert train(one, back).ends() == [9, 9]
    assert [each["lr"] for each in back.optimizer.param_groups] == [0.1, 0.01]
    assert equal(one, back)


def test_a_learning_rate_of_numpy_is_copied_as_what_it_is() -> None:
    one, back = one_and_one_that_comes_back()
    one.optimizer.param_groups[0]["lr"] = np.float32(0.3)
    assert train(one, back).ends() == [9, 9]
    assert type(back.optimizer.param_groups[0]["lr"]) is np.float32
    assert equal(one, back)


def test_a_buffer_that_grew_meanwhile_is_copied_whole() -> None:
    one, back = one_and_one_that_comes_back()
    for group in (one, back):
        group.model.register_buffer("table", torch.zeros(2), persistent=False)

    def grow(step: int) -> None:
        if step == 3:
            one.model.table = torch.arange(5.0)

    one.before = grow  # type: ignore[method-assign]
    assert train(one, back).ends() == [9, 9]
    assert torch.equal(cast(Tensor, back.model.table), torch.arange(5.0))
    assert equal(one, back)


@pytest.mark.parametrize("named", ["model", "optimizer"])
def test_a_group_of_another_script_is_told_what_is_unlike(named: str) -> None:
    one, back = one_and_one_that_comes_back()
    if named == "model":
        back.layers[0].weight = nn.Parameter(torch.zeros(4, 2))
        unlike = r"model: .*\[4, 2\].*\[4, 3\]"
    else:
        back.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
        unlike = "optimizer: .*parameters of places"
    back.used = lambda step: (2,)
    stage = train(one, back)
    with pytest.raises(InvalidInput, match=unlike):
        stage.running[1].result(LIMIT_S)
    one.stay.go_on(part(4, 0, 1, broke_in=4))
    assert stage.ends()[0] == 9
