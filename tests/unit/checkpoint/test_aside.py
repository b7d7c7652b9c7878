"""The settings that hold still hold where the checkpoint was read once more, behind epochs that are over."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.checkpoint import Checkpointer, Standalone


class Own(torch.optim.AdamW):
    """Another class, whose settings are the script's."""


def rate_of_next_step(folder: Path, make: Any, rate: float, until: int, **options: Any) -> float:
    """The model is pruned behind each epoch."""
    model = nn.Linear(2, 1)
    optimizer = make(model.parameters(), lr=rate)
    saves = Checkpointer(Standalone(folder.as_uri()), model=model, optimizer=optimizer, every_steps=1, **options)
    rates = []
    for _ in range(3):
        for _ in saves.steps(range(4), until=until):
            rates.append(float(optimizer.param_groups[0]["lr"]))
            for each in model.parameters():
                each.grad = torch.ones_like(each)
            optimizer.step()
        with torch.no_grad():
            model.weight.mul_(0.5)
    saves.close()
    return rates[0]


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD, Own])
def test_settings_of_the_script_hold_behind_epochs_that_changed_the_model(make: Any, tmp_path: Path) -> None:
    first = torch.optim.AdamW if make is Own else make
    options = {} if make is Own else {"settings": {"lr": "script"}}
    rate_of_next_step(tmp_path, first, 0.1, 6)
    assert rate_of_next_step(tmp_path, make, 0.02, 7, **options) == 0.02
