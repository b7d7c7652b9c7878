"""Pipelines: every rank's optimizer has parameters of its own, in groups of the same numbers on all ranks."""

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from layouts_troupe import Troupe
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from holdfast.api.errors import InvalidInput
from holdfast.checkpoint import Checkpointer, Standalone

SAVED = [0.5, 0.25]
"""The learning rates of weights and biases in what is saved."""


@dataclass(frozen=True)
class Script:
    """`order` is that of the groups; rank r's learning rates are `spread` * r larger than those of rank 0."""

    folder: Path
    order: tuple[str, ...] = ("weight", "bias")
    spread: float = 0.0
    has_bias: tuple[bool, bool] = (True, True)
    momentum: float = 0.9


def stage(script: Script, held: range) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The layers `held` of two, under their own names."""
    layers = [(str(number), nn.Linear(2, 2, bias=script.has_bias[number])) for number in held]
    model = nn.Sequential(OrderedDict(layers))
    groups = [
        {"params": [parameter for name, parameter in model.named_parameters() if name.endswith(kind)]}
        for kind in script.order
    ]
    return model, torch.optim.SGD(groups, lr=1.0, momentum=script.momentum)


def own_part() -> range:
    return range(dist.get_rank(), dist.get_rank() + 1) if dist.get_world_size() > 1 else range(2)


def rates(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [group["lr"] for group in optimizer.param_groups]


def save(script: Script) -> str:
    """Train one step, save, and say what was refused."""
    model, optimizer = stage(script, own_part())
    for group, rate in zip(optimizer.param_groups, SAVED, strict=True):
        group["lr"] = rate + script.spread * dist.get_rank()
    checkpointer = Checkpointer(Standalone(str(script.folder)), model=model, optimizer=optimizer)
    try:
        for _ in checkpointer.steps("x"):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        checkpointer.close()
    except InvalidInput as refused:
        return str(refused)
    return ""


def save_as_before(script: Script) -> str:
    """As it was done before lists were joined: each as one rank has it."""
    with mock.patch("holdfast.checkpoint.capture.groups.joined", return_value={}):
        return save(script)


def restore(script: Script) -> list[Any]:
    model, optimizer = stage(script, own_part())
    checkpointer = Checkpointer(Standalone(str(script.folder)), model=model, optimizer=optimizer)
    for _ in checkpointer.steps("xx", until=2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    checkpointer.close()
    return rates(optimizer)


def restore_by_stock_torch(script: Script) -> list[Any]:
    model, optimizer = stage(script, own_part())
    named, states = get_state_dict(model, optimizer)
    state = {"model": named, "optimizer": states}
    dcp.load(state, checkpoint_id=script.folder / "step-00000001")
    set_state_dict(model, optimizer, model_state_dict=named, optim_state_dict=states)
    return rates(optimizer)


@pytest.mark.parametrize("act", [restore, restore_by_stock_torch])
@pytest.mark.parametrize("ranks", [(2, 2), (2, 1), (1, 2)], ids=["stages", "stages to whole", "whole to stages"])
def test_every_stage_has_back_the_settings_of_its_parameters(
    act: Any, ranks: tuple[int, int], troupe: Troupe, tmp_path: Path
) -> None:
    before, after = ranks
    assert troupe.play(save, Script(tmp_path), ranks=before) == [""] * before
    assert troupe.play(act, Script(tmp_path), ranks=after) == [SAVED] * after


@pytest.mark.parametrize("momentum", [0.9, 0.0], ids=["with state", "without state"])
def test_groups_in_another_order_have_back_the_settings_of_their_parameters(
    momentum: float, troupe: Troupe, tmp_path: Path
) -> None:
    troupe.play(save, Script(tmp_path, momentum=momentum), ranks=2)
    turned = Script(tmp_path, order=("bias", "weight"), momentum=momentum)
    assert troupe.play(restore, turned, ranks=2) == [SAVED[::-1]] * 2


@pytest.mark.parametrize("order", [("weight", "bias"), ("bias", "weight")], ids=["last", "first"])
def test_a_group_of_which_a_stage_has_nothing_is_restored_as_well(
    order: tuple[str, str], troupe: Troupe, tmp_path: Path
) -> None:
    script = Script(tmp_path, order=order, has_bias=(True, False))
    troupe.play(save, script, ranks=2)
    assert troupe.play(restore, script, ranks=2) == [SAVED] * 2


def test_a_checkpoint_with_the_list_of_one_stage_is_restored_by_number_where_it_does_not_name_them(
    troupe: Troupe, tmp_path: Path
) -> None:
    troupe.play(save_as_before, Script(tmp_path), ranks=2)
    assert troupe.play(restore, Script(tmp_path), ranks=2) == [SAVED] * 2
    assert troupe.play(restore, Script(tmp_path), ranks=1) == [SAVED]


def test_settings_that_differ_between_stages_are_refused_by_name_with_both_values(
    troupe: Troupe, tmp_path: Path
) -> None:
    said = troupe.play(save, Script(tmp_path, spread=0.125), ranks=2)
    assert said[0] == said[1]
    assert "optimizer.param_groups.0.lr: '0.5 on rank 0, 0.625 on rank 1' is not accepted" in said[0]
    assert "change learning rates on all of them alike" in said[0]
    assert not list(tmp_path.glob("step-*"))
