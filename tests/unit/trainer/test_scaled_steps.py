"""Steps that torch's gradient scaler leaves out: infinite norms of the first steps in half precision."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from trainer_builders import assignment

from holdfast.api import rankrecord
from holdfast.api.control import record_file_name
from holdfast.api.rankrecord import HealthZone, Odd
from holdfast.trainer.gradscaling import SCALED_IN_A_ROW, scaling
from holdfast.trainer.record import open_record
from holdfast.trainer.values import SKIPS_IN_A_ROW, StepValues

Make = Callable[[nn.Module], Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "plain": lambda model: SGD(model.parameters(), lr=0.1),
    "foreach": lambda model: AdamW(model.parameters(), lr=0.1, foreach=True),
    # It takes the scale itself, and runs in any case.
    "fused": lambda model: Adam(model.parameters(), lr=0.1, fused=True),
}


class Scaler(torch.amp.GradScaler):
    """A class of the script's own."""


class Training:
    """A model in half precision whose gradients overflow as long as the scale is too large."""

    def __init__(self, folder: Path, make: Make, scaler: torch.amp.GradScaler) -> None:
        self._folder, self._scaler = folder, scaler
        record = open_record(folder, 0)
        record.begin(assignment(round=7, rank=0, world_size=1))
        self._record, self.values, self._step = record, StepValues(record), 0
        self._model = nn.Linear(2, 2)
        self._optimizer = make(self._model)
        scaling.follow()
        scaling.take()

    def step(self, *, loss: float = 1.0, overflows: bool) -> None:
        self._step += 1
        self._optimizer.zero_grad()
        self._scaler.scale(self._model(torch.ones(1, 2)).sum()).backward()
        for parameter in self._model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(math.inf if overflows else 1.0)
        self._scaler.unscale_(self._optimizer)
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self.told(loss, norm)

    def told(self, loss: float, norm: torch.Tensor) -> None:
        """What `Run.step` does of it."""
        if scaling.is_used:
            self.values.scaled(self._step, scaling.take())
        self._record.step(self._step, *self.values.take(self._step, loss, norm), 0)

    @property
    def zone(self) -> HealthZone:
        return rankrecord.unpack_health((self._folder / record_file_name(0)).read_bytes())


@pytest.mark.parametrize("kind", [torch.amp.GradScaler, Scaler])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=[*OPTIMIZERS])
def test_what_the_scaler_left_out_is_no_fault(
    make: Make, kind: type[torch.amp.GradScaler], tmp_path: Path
) -> None:
    training = Training(tmp_path, make, kind("cpu"))
    for overflows in (True,) * 20 + (False, True, False):
        training.step(overflows=overflows)
        assert training.values.is_finite()
    assert training.zone.count == 0


def test_a_scaler_that_never_finds_a_scale_is_a_fault(tmp_path: Path) -> None:
    training = Training(tmp_path, OPTIMIZERS["plain"], torch.amp.GradScaler("cpu"))
    for _ in range(SCALED_IN_A_ROW):
        training.step(overflows=True)
    assert (training.zone.count, training.zone.grad_norm) == (1, Odd.INFINITE)


def test_a_loss_that_stays_odd_is_a_fault_whatever_the_scaler_leaves_out(tmp_path: Path) -> None:
    training = Training(tmp_path, OPTIMIZERS["plain"], torch.amp.GradScaler("cpu"))
    for step in range(1, SKIPS_IN_A_ROW + 1):
        assert training.zone.count == 0, step
        training.step(loss=math.nan, overflows=True)
    assert (training.zone.count, training.zone.loss) == (1, Odd.NAN)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_without_a_scaler_or_with_one_that_is_off_the_norm_counts(is_enabled: bool, tmp_path: Path) -> None:
    training = Training(tmp_path, OPTIMIZERS["plain"], torch.amp.GradScaler("cpu", enabled=is_enabled))
    if is_enabled:
        training.told(1.0, torch.tensor(math.inf))
    else:
        training.step(overflows=True)
    assert training.zone.count == 1
