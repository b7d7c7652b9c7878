"""A learning rate that is cut for a while, through restores at any step of it."""

from collections.abc import Callable

import pytest
import torch
from torch.optim import SGD, Optimizer
from torch.optim import lr_scheduler as schedulers

from holdfast.api.learningrate import LearningRateCut
from holdfast.checkpoint.capture.learningrate import LearningRate

CUT = LearningRateCut(0.5, after=4, until=8)
MORE = LearningRateCut(0.25, after=6)
MAKES: dict[str, Callable[[Optimizer], object]] = {
    "none": lambda optimizer: None,
    "lambda": lambda optimizer: schedulers.LambdaLR(optimizer, lambda step: 1.0 / (1 + step)),
    "step": lambda optimizer: schedulers.StepLR(optimizer, step_size=3, gamma=0.5),
    "cosine": lambda optimizer: schedulers.CosineAnnealingLR(optimizer, T_max=16, eta_min=0.25),
    "one cycle": lambda optimizer: schedulers.OneCycleLR(
        optimizer, max_lr=1.0, total_steps=16, cycle_momentum=False
    ),
    "cyclic": lambda optimizer: schedulers.CyclicLR(optimizer, 0.25, 1.0, step_size_up=4, cycle_momentum=False),
    "sequence": lambda optimizer: schedulers.SequentialLR(
        optimizer,
        [schedulers.ConstantLR(optimizer, factor=0.5), schedulers.LambdaLR(optimizer, lambda step: 0.5**step)],
        milestones=[5],
    ),
}


def test_a_tensor_that_groups_share_is_cut_once() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(2)]
    optimizer = SGD(groups, lr=torch.tensor(1.0))
    rate = LearningRate(optimizer, None)
    rate.go_on([LearningRateCut(0.5, after=0, until=1)], 0, has_all=False)
    for step, expected in ((1, 0.5), (2, 1.0)):
        rate.before(step)
        assert [float(each["lr"]) for each in optimizer.param_groups] == [expected] * 2


class Loop:
    def __init__(self, scheduler: str = "none", lr: float | torch.Tensor = 1.0) -> None:
        self.optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
        self.scheduler = MAKES[scheduler](self.optimizer)
        self.rate = LearningRate(self.optimizer, self.scheduler)
        self.step = 0

    def train(self, until: int) -> list[float]:
        rates = []
        while self.step < until:
            self.step += 1
            self.rate.before(self.step)
            rates.append(float(self.optimizer.param_groups[0]["lr"]))
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()  # type: ignore[attr-defined]
        return rates

    def saved(self) -> list[dict[str, object]]:
        each = (self.optimizer, self.scheduler)
        return [one.state_dict() for one in each if one is not None]  # type: ignore[attr-defined]

    def restored(self, saved: list[dict[str, object]], step: int, *cuts: LearningRateCut) -> "Loop":
        for one, state in zip((self.optimizer, self.scheduler), saved, strict=False):
            if one is not None:
                one.load_state_dict(state)  # type: ignore[attr-defined]
        self.step = step
        self.rate.go_on(cuts, step, has_all=False)
        return self


def uncut(scheduler: str, until: int) -> list[float]:
    return Loop(scheduler).train(until)


@pytest.mark.parametrize("scheduler", MAKES)
@pytest.mark.parametrize("again_at", [4, 5, 7, 8, 9])
def test_it_is_cut_for_its_steps_and_then_as_before_wherever_a_round_begins_meanwhile(
    scheduler: str, again_at: int
) -> None:
    loop = Loop(scheduler)
    loop.train(4)
    first = Loop(scheduler).restored(loop.saved(), 4, CUT)
    rates = first.train(again_at)
    second = Loop(scheduler).restored(first.saved(), again_at, CUT)
    rates += second.train(12)
    whole = uncut(scheduler, 12)
    assert rates == [whole[step - 1] * (0.5 if step <= 8 else 1.0) for step in range(5, 13)]


def test_cuts_add_up_and_each_ends_by_itself() -> None:
    loop = Loop()
    loop.train(4)
    loop = Loop().restored(loop.saved(), 4, CUT)
    loop.train(6)
    assert Loop().restored(loop.saved(), 6, CUT, MORE).train(10) == [0.125, 0.125, 0.25, 0.25]


def test_what_is_older_than_the_cut_is_cut_anew_and_a_snapshot_of_memory_has_it() -> None:
    assert Loop().restored(Loop().saved(), 2, CUT).train(9) == [0.5] * 6 + [1.0]
    loop = Loop()
    loop.optimizer.param_groups[0]["lr"] = 0.5
    loop.step = 3
    loop.rate.go_on((CUT,), 3, has_all=True)
    assert loop.train(9) == [0.5] * 5 + [1.0]


def test_a_rate_that_is_a_tensor_stays_the_same_tensor() -> None:
    loop = Loop(lr=torch.tensor(1.0))
    kept = loop.optimizer.param_groups[0]["lr"]
    loop.rate.go_on((MORE, MORE), 0, has_all=False)
    loop.train(1)
    assert (kept is loop.optimizer.param_groups[0]["lr"], float(kept)) == (True, 0.0625), (
        "of two that are alike each counts"
    )


class Own:
    """A scheduler of a script's own making."""

    def state_dict(self) -> dict[str, object]:
        return {}


def test_a_scheduler_that_hides_where_it_starts_from_is_out_of_reach() -> None:
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    made = [make(optimizer) for make in MAKES.values()]
    assert all(LearningRate(optimizer, each).is_reachable for each in made)
    assert LearningRate(optimizer, schedulers.ReduceLROnPlateau(optimizer)).is_reachable
    assert not LearningRate(optimizer, Own()).is_reachable
