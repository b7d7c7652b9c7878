"""A restart that asks for other settings than the checkpoint has: said, and as the script wants it."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer, lr_scheduler

from holdfast.api.errors import InvalidInput
from holdfast.api.learningrate import LearningRateCut
from holdfast.api.round import Restore, Tier
from holdfast.checkpoint import Checkpointer, Standalone

Makes = Callable[[nn.Module], Optimizer]
Schedules = Callable[[Optimizer], Any]


class Told(Standalone):
    """A run that keeps what it is told of settings."""

    def configure(self, settings: Mapping[str, Any], /) -> None:
        self.in_force: dict[str, str] = settings["in force"]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 2), nn.Linear(2, 1)

    def forward(self, values: Tensor) -> Tensor:
        found: Tensor = self.last(self.first(values))
        return found


@dataclass
class Process:
    """One that trains to step `until`. `rates` are the learning rates of the first group, by step."""

    folder: Path
    make: Makes
    schedule: Schedules = lambda optimizer: None
    options: dict[str, Any] = field(default_factory=dict)
    by_hand: Callable[[Optimizer, int], None] = lambda optimizer, step: None
    restore: Restore | None = None
    rates: dict[int, float] = field(default_factory=dict)

    def trained(self, until: int) -> "Process":
        torch.manual_seed(0)
        model = Twice()
        self.optimizer = self.make(model)
        self.scheduler = self.schedule(self.optimizer)
        self.run = Told(self.folder.as_uri(), restore=self.restore)
        saves = Checkpointer(
            self.run,
            model=model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            every_steps=100,
            **self.options,
        )
        for step, _ in saves.steps(range(100), until=until):
            self.by_hand(self.optimizer, step)
            self.rates[step] = float(self.optimizer.param_groups[0]["lr"])
            self.optimizer.zero_grad()
            model(torch.ones(2)).square().sum().backward()
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
        saves.close()
        return self

    def setting(self, name: str, group: int = 0) -> Any:
        return self.optimizer.param_groups[group][name]


def adamw(lr: float | Tensor, decay: float = 0.01) -> Makes:
    """A rate in a tensor is one of each process."""

    def make(model: nn.Module) -> Optimizer:
        rate = lr.clone() if isinstance(lr, Tensor) else lr
        return AdamW(model.parameters(), lr=rate, weight_decay=decay)

    return make


def sgd(lr: float, momentum: float = 0.5) -> Makes:
    return lambda model: SGD(model.parameters(), lr=lr, momentum=momentum)


def grouped(*rates: float, is_turned: bool = False) -> Makes:
    """One group for each layer; `is_turned`: the other way round, each with its rate."""

    def make(model: nn.Module) -> Optimizer:
        groups = [
            {"params": list(each.parameters()), "lr": lr} for each, lr in zip(model.children(), rates, strict=True)
        ]
        return AdamW(groups[::-1] if is_turned else groups)

    return make


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "the script asks for" in each.getMessage()]


@pytest.mark.parametrize(
    ("first", "second", "differing", "held"),
    [
        (adamw(0.1, 0.01), adamw(0.01, 0.2), {"lr": ("0.1", "0.01"), "weight_decay": ("0.01", "0.2")}, 0.1),
        (sgd(0.1, 0.5), sgd(0.1, 0.9), {"momentum": ("0.5", "0.9")}, 0.1),
        (grouped(0.1, 0.2), grouped(0.1, 0.3), {"param_groups.1.lr": ("0.2", "0.3")}, 0.1),
        (
            grouped(0.1, 0.2),
            grouped(0.1, 0.3, is_turned=True),
            {"param_groups.0.lr": ("0.2", "0.3")},
            0.2,
        ),
        (adamw(torch.tensor(0.1)), adamw(torch.tensor(0.001)), {"lr": ("0.1", "0.001")}, 0.1),
    ],
    ids=["rate and decay", "momentum", "one group", "groups turned round", "a rate in a tensor"],
)
def test_what_differs_is_named_and_the_checkpoints_holds(
    first: Makes,
    second: Makes,
    differing: dict[str, tuple[str, str]],
    held: float,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    Process(tmp_path, first).trained(3)
    assert said(caplog) == []
    process = Process(tmp_path, second).trained(5)
    (line,) = said(caplog)
    for name, (checkpoint, script) in differing.items():
        assert f"{name}: checkpoint {checkpoint} holds, script {script}" in line
        told = f"{checkpoint} (the checkpoint's, not the script's {script})"
        assert process.run.in_force[name] == told
    assert line.count(" holds, ") == len(differing)
    assert "settings={" in line
    assert process.rates[5] == pytest.approx(held)

    # It is said as long as it differs, and no more when the script asks for what is in force.
    Process(tmp_path, second).trained(6)
    assert len(said(caplog)) == 2
    Process(tmp_path, first).trained(7)
    assert len(said(caplog)) == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [(adamw(0.1), adamw(0.01, 0.2)), (adamw(torch.tensor(0.1)), adamw(torch.tensor(0.01), 0.2))],
    ids=["numbers", "a tensor"],
)
@pytest.mark.parametrize("settings", ["script", {"weight_decay": "script"}, {"lr": "checkpoint", "*": "script"}])
def test_the_scripts_hold_where_it_says_so(
    first: Makes, second: Makes, settings: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Process(tmp_path, first).trained(3)
    process = Process(tmp_path, second, options={"settings": settings}).trained(5)
    is_whole = settings == "script"
    (line,) = said(caplog)
    assert "weight_decay: script 0.2 holds, checkpoint 0.01" in line
    assert ("lr: script 0.01 holds, checkpoint 0.1" in line) is is_whole
    assert process.setting("weight_decay") == 0.2
    assert process.run.in_force["weight_decay"] == "0.2"
    assert isinstance(process.setting("lr"), Tensor) is isinstance(first(Twice()).param_groups[0]["lr"], Tensor)
    assert process.rates[4] == pytest.approx(0.01 if is_whole else 0.1)

    # What is in force now is the checkpoint's of the next start.
    Process(tmp_path, second, options={"settings": settings}).trained(6)
    assert len(said(caplog)) == (1 if is_whole else 2)


SCHEDULES: dict[str, Schedules] = {
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 4)),
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=12, eta_min=0.002),
    "restarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=3, T_mult=2),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(
        optimizer, max_lr=float(optimizer.param_groups[0]["lr"]), total_steps=20
    ),
    "multiplied": lambda optimizer: lr_scheduler.MultiplicativeLR(optimizer, lambda step: 0.9),
    "sequence": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
            lr_scheduler.CosineAnnealingLR(optimizer, T_max=9),
        ],
        milestones=[3],
    ),
    "chain": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=2), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    ),
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_what_a_schedule_has_moved_is_no_difference(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for until in (5, 8):
        Process(tmp_path, adamw(0.1), SCHEDULES[kind]).trained(until)
    assert said(caplog) == []


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("lr", [0.01, torch.tensor(0.01)], ids=["number", "tensor"])
def test_a_schedule_goes_on_where_it_was_from_the_rate_that_holds(
    kind: str, lr: float | Tensor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = adamw(torch.tensor(0.1) if isinstance(lr, Tensor) else 0.1), adamw(lr)
    as_it_was = Process(tmp_path / "old", first, SCHEDULES[kind]).trained(10)
    as_asked = Process(tmp_path / "new", second, SCHEDULES[kind]).trained(10)

    for name, settings, expected in (("held", "checkpoint", as_it_was), ("taken", "script", as_asked)):
        folder = tmp_path / name
        Process(folder, first, SCHEDULES[kind]).trained(5)
        caplog.clear()
        went_on = Process(folder, second, SCHEDULES[kind], {"settings": settings}).trained(10)
        (line,) = said(caplog)
        assert "lr: " in line
        assert "0.01" in line
        assert "0.1" in line
        for step in range(6, 11):
            assert went_on.rates[step] == pytest.approx(expected.rates[step], rel=1e-5), (name, step)


@pytest.mark.parametrize(
    ("first", "second", "name", "values"),
    [
        (
            lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=7),
            lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=12),
            "scheduler.T_max",
            ("7", "12"),
        ),
        (
            lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10),
            lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20),
            "scheduler.total_steps",
            ("10", "20"),
        ),
        (
            lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 4]),
            lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 20]),
            "scheduler.milestones",
            ("[[2, 1], [4, 1]]", "[[2, 1], [20, 1]]"),
        ),
        (
            lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=3),
            lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=8),
            "scheduler.T_0",
            ("3", "8"),
        ),
    ],
    ids=["cosine", "one cycle", "milestones", "restarts"],
)
def test_another_schedule_is_named_and_taken_where_the_script_says_so(
    first: Schedules,
    second: Schedules,
    name: str,
    values: tuple[str, str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    as_asked = Process(tmp_path / "new", adamw(0.1), second).trained(9)
    for folder, settings, line in (
        ("held", "checkpoint", f"{name}: checkpoint {values[0]} holds, script {values[1]}"),
        (
            "taken",
            {name.rpartition(".")[2]: "script"},
            f"{name}: script {values[1]} holds, checkpoint {values[0]}",
        ),
    ):
        Process(tmp_path / folder, adamw(0.1), first).trained(5)
        caplog.clear()
        process = Process(tmp_path / folder, adamw(0.1), second, {"settings": settings}).trained(9)
        assert line in said(caplog)[0]
        is_as_asked = math.isclose(process.rates[9], as_asked.rates[9], rel_tol=1e-6)
        assert is_as_asked is (folder == "taken")


def test_another_kind_of_schedule_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Process(tmp_path, adamw(0.1), SCHEDULES["step"]).trained(3)
    Process(tmp_path, adamw(0.1), SCHEDULES["cosine"]).trained(4)
    assert "scheduler.T_max: script 12 holds, checkpoint none" in said(caplog)[0]


def test_a_rate_that_a_script_moves_by_hand_is_no_difference(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def by_hand(optimizer: Optimizer, step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"], group["weight_decay"] = 0.1 / step, 0.01 * step

    for until in (3, 5):
        Process(tmp_path, adamw(0.1), by_hand=by_hand).trained(until)
    assert said(caplog) == []


def test_other_optimizers_and_their_schedules_count_as_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for lr, settings in ((0.1, "checkpoint"), (0.02, "script")):
        other = nn.Linear(1, 1)
        second = SGD(other.parameters(), lr=lr)
        schedule = lr_scheduler.ExponentialLR(second, 0.5)
        extra = {"other": other, "second": second, "schedule": schedule}

        def both(optimizer: Optimizer, step: int, second: Optimizer = second, last: Any = schedule) -> None:
            second.step()
            last.step()

        options = {"extra": extra, "settings": settings}
        process = Process(tmp_path, adamw(0.1), options=options, by_hand=both).trained(3 if lr == 0.1 else 5)
    assert "extra.second.lr: script 0.02 holds, checkpoint 0.1" in said(caplog)[0]
    assert second.param_groups[0]["lr"] == pytest.approx(0.02 * 0.5**5)
    assert process.rates[5] == 0.1


@pytest.mark.parametrize("kind", ["none", "step", "cosine", "multiplied"])
def test_a_cut_that_holds_is_made_of_the_scripts_rate_too(kind: str, tmp_path: Path) -> None:
    schedule = SCHEDULES.get(kind, lambda optimizer: None)
    cuts = (LearningRateCut(0.5, after=2),)
    restore = Restore(tier=Tier.CHECKPOINT, uri=tmp_path.as_uri(), learning_rate_cuts=cuts)
    expected = Process(tmp_path / "whole", adamw(0.01), schedule).trained(6)
    Process(tmp_path, adamw(0.1), schedule, restore=restore).trained(4)
    process = Process(tmp_path, adamw(0.01), schedule, {"settings": "script"}, restore=restore).trained(6)
    assert process.rates[5] == pytest.approx(expected.rates[5] * 0.5)
    assert process.rates[6] == pytest.approx(expected.rates[6] * 0.5)


@pytest.mark.parametrize("settings", ["scripts", {"lr": "mine"}, {"weight_decy": "script"}])
def test_a_wish_that_is_none_is_refused(settings: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="settings"):
        Process(tmp_path, adamw(0.1), options={"settings": settings}).trained(1)


def test_a_checkpoint_that_does_not_say_what_was_asked_for_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "_look", lambda self: None)
        Process(tmp_path, adamw(0.1), SCHEDULES["step"]).trained(3)
    caplog.set_level(logging.WARNING)
    Process(tmp_path, adamw(0.1), SCHEDULES["step"]).trained(4)
    assert said(caplog) == []
    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "_look", lambda self: None)
        Process(tmp_path, adamw(0.1), SCHEDULES["step"]).trained(5)
    Process(tmp_path, adamw(0.3), SCHEDULES["step"]).trained(6)
    assert "lr: checkpoint 0.1 holds, script 0.3" in said(caplog)[0]
