"""A restart with another optimizer, or one of other parameters: what it is, and what has no place, is said."""

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer, RAdam

from holdfast.checkpoint import Checkpointer, Standalone, Unfit

Make = Callable[[nn.Module], Optimizer]


class Own(Adam):
    """A script's own, which only adds to it."""


class Counting(Optimizer):
    """Keeps what is of all parameters together under keys of its own."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        state: Any = self.state
        state.setdefault("together", {"steps": 0, "norm": torch.zeros(())})
        state["together"]["steps"] += 1
        state["together"]["norm"] += 0.5
        state["seen"] = [state["together"]["steps"]]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))


def trained(folder: Path, make: Make, until: int, **options: Any) -> Optimizer:
    model = net()
    optimizer = make(model)
    run = Standalone(folder.as_uri())
    saves = Checkpointer(run, model=model, optimizer=optimizer, every_steps=1, **options)
    try:
        for _ in saves.steps(range(9), until=until):
            for each in model.parameters():
                each.grad = torch.ones_like(each)
            optimizer.step()
    finally:
        saves.close()
    return optimizer


def last(kind: Callable[..., Optimizer], **settings: Any) -> Make:
    return lambda model: kind(model[1].parameters(), **settings)  # type: ignore[index]


def whole(kind: Callable[..., Optimizer], **settings: Any) -> Make:
    return lambda model: kind(model.parameters(), **settings)


def grouped(kind: Callable[..., Optimizer], **settings: Any) -> Make:
    return lambda model: kind([{"params": list(each.parameters())} for each in reversed(model)], **settings)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("make", "fewer", "name"),
    [
        (whole(AdamW), last(AdamW), "optimizer.state.0.weight.exp_avg"),
        (whole(SGD, momentum=0.9), last(SGD, momentum=0.9), "optimizer.state.0.weight.momentum_buffer"),
        (whole(Adafactor), last(Adafactor), "optimizer.state.0.weight.row_var"),
        (grouped(SGD), last(SGD), "optimizer.param_groups.1"),
    ],
    ids=["AdamW", "momentum", "Adafactor", "a group without state"],
)
def test_what_was_kept_of_parameters_that_are_not_trained_any_more_is_named(
    make: Make, fewer: Make, name: str, tmp_path: Path
) -> None:
    trained(tmp_path, make, 2)
    with pytest.raises(Unfit) as refused:
        trained(tmp_path, fewer, 3)
    assert name in str(refused.value)
    left_over: Sequence[str] = ["0.*", "optimizer.param_groups.1"]
    optimizer = trained(tmp_path, fewer, 0, may_be_left_over=left_over)
    assert all(isinstance(each, nn.Parameter) for each in optimizer.state)


def test_what_an_optimizer_keeps_under_keys_of_its_own_comes_back(tmp_path: Path) -> None:
    saved = dict(trained(tmp_path, whole(Counting), 3).state)
    found: dict[Any, Any] = dict(trained(tmp_path, whole(Counting), 0).state)
    assert found == saved
    assert found["together"] == {"steps": 3, "norm": torch.tensor(1.5)}
    assert found["seen"] == [3]


@pytest.mark.parametrize(
    ("then", "now", "holds"),
    [
        (whole(Adam), whole(AdamW), {"decoupled_weight_decay": True, "weight_decay": 0.01}),
        (whole(AdamW), whole(Adam), {"decoupled_weight_decay": False, "weight_decay": 0}),
        (whole(Adam, lr=0.2), whole(RAdam, lr=0.1), {"lr": 0.1}),
    ],
    ids=["AdamW of Adam", "Adam of AdamW", "RAdam of Adam"],
)
def test_another_class_is_said_and_stays_what_it_is(
    then: Make, now: Make, holds: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained(tmp_path, then, 2)
    with caplog.at_level(logging.WARNING):
        optimizer = trained(tmp_path, now, 0)
    assert {key: optimizer.param_groups[0][key] for key in holds} == holds
    assert next(iter(optimizer.state.values()))["step"] == 2
    assert "optimizer.class: script torch.optim." in caplog.text


def test_by_name_the_checkpoints_settings_hold_beside_another_class(tmp_path: Path) -> None:
    trained(tmp_path, whole(Adam, lr=0.2), 2)
    optimizer = trained(tmp_path, whole(AdamW, lr=0.1), 0, settings={"lr": "checkpoint"})
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert optimizer.param_groups[0]["decoupled_weight_decay"]


@pytest.mark.parametrize(
    ("now", "lines"),
    [(whole(Own), 1), (whole(Adam, foreach=True), 1), (whole(Adam), 0)],
    ids=["a subclass", "foreach", "the same"],
)
def test_a_variant_goes_on(now: Make, lines: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(tmp_path, whole(Adam), 2)
    with caplog.at_level(logging.WARNING):
        optimizer = trained(tmp_path, now, 0)
    assert next(iter(optimizer.state.values()))["step"] == 2
    assert sum("asks for other settings" in each.message for each in caplog.records) == lines
