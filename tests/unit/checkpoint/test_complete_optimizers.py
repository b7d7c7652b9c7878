"""Whatever an optimizer keeps is saved and restored as it is: which one it is, when it begins, what is frozen.

Each trains twice, whole and cut by a restore in a new process's place, and comes to the same bits; and so does one
that saves nothing.
"""

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from holdfast.api.errors import InvalidInput
from holdfast.checkpoint import Checkpointer, Standalone, Unfit
from holdfast.checkpoint.capture import optimizerstate

END = 9
Make = Callable[[nn.Module], Any]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 2)
        self.unused = nn.Linear(3, 3)  # never has a gradient

    def forward(self, values: Tensor) -> Tensor:
        found: Tensor = self.last(self.norm(self.first(values)))
        return found


class ScheduleFree(Optimizer):
    """Keeps a second set of weights, made at the first step, and counts steps in its group."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"lr": 0.05, "k": 0})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["k"] += 1
            for each in group["params"]:
                if each.grad is None:
                    continue
                z = self.state[each].setdefault("z", each.detach().clone())
                z.sub_(each.grad, alpha=group["lr"])
                each.data.lerp_(z, 1 / group["k"])


class Precise(Optimizer):
    """Keeps moments in double precision, in a list, beside a count in a dictionary and one that is no tensor."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"lr": 0.05})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in (one for one in group["params"] if one.grad is not None):
                state = self.state[each]
                if not state:
                    zero = torch.zeros_like(each, dtype=torch.float64)
                    state |= {"moments": [zero, zero.clone()], "seen": {"count": torch.tensor(0)}, "last": None}
                first, second = state["moments"]
                first.mul_(0.9).add_(each.grad.double(), alpha=0.1)
                second.mul_(0.99).add_(each.grad.double().square(), alpha=0.01)
                state["seen"]["count"] += 1
                state["last"] = float(each.grad.sum())
                each.data.sub_((first / (second.sqrt() + 1e-8)).to(each.dtype), alpha=group["lr"])


class Lookahead:
    """Wraps another one, and says the state of both in a form of its own, by numbers."""

    def __init__(self, fast: Optimizer) -> None:
        self.fast, self.slow, self.count = fast, dict[int, Tensor](), 0

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.fast.param_groups

    def zero_grad(self) -> None:
        self.fast.zero_grad()

    def step(self) -> None:
        self.fast.step()
        self.count += 1
        for number, each in enumerate(one for group in self.param_groups for one in group["params"]):
            slow = self.slow.setdefault(number, each.detach().clone())
            if self.count % 2 == 0:
                each.data.copy_(slow.lerp_(each.detach(), 0.5))

    def state_dict(self) -> dict[str, Any]:
        return {"fast": self.fast.state_dict(), "slow": dict(self.slow), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.fast.load_state_dict(state["fast"])
        self.slow, self.count = {number: each.clone() for number, each in state["slow"].items()}, state["count"]


def line_search(model: nn.Module) -> Optimizer:
    return torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2, history_size=3)


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda model: SGD(model.parameters(), lr=0.05, momentum=0.9),
    "adamw": lambda model: AdamW(model.parameters(), lr=0.05),
    "amsgrad": lambda model: AdamW(model.parameters(), lr=0.05, amsgrad=True, capturable=False),
    "adafactor": lambda model: Adafactor(model.parameters(), lr=0.05),
    "lbfgs": line_search,
    "schedule-free": lambda model: ScheduleFree(model.parameters()),
    "precise": lambda model: Precise(model.parameters()),
    "lookahead": lambda model: Lookahead(AdamW(model.parameters(), lr=0.05)),
    "groups": lambda model: AdamW([{"params": [each], "lr": 0.01} for each in model.parameters()]),
}


def trained(
    folder: Path | None,
    make: Make,
    *ends: int,
    before: Callable[[Net, int], object] = lambda model, step: None,
    dtype: torch.dtype = torch.float32,
    moves_from: int = 1,
) -> list[Tensor]:
    """The weights after the last of `ends`; a process ended after each of the others. The optimizer moves from a
    step of its own on.
    """
    for end in ends:
        torch.manual_seed(0)
        model = Net().to(dtype)
        before(model, 0)
        optimizer = make(model)
        run = Standalone() if folder is None else Standalone(folder.as_uri())
        saves = Checkpointer(run, model=model, optimizer=optimizer, every_steps=1)
        for step, number in saves.steps(itertools.count(), until=end):
            before(model, step)
            closure = partial(gradients, model, number, dtype)
            if isinstance(optimizer, torch.optim.LBFGS):
                optimizer.step(closure)
                optimizer.zero_grad()
                continue
            closure()
            if step >= moves_from:
                optimizer.step()
            optimizer.zero_grad()
        saves.close()
    return [each.detach() for each in model.parameters()]


def gradients(model: nn.Module, number: int, dtype: torch.dtype) -> Tensor:
    """Added to those that are there."""
    given = torch.randn(3, 4, generator=torch.Generator().manual_seed(number)).to(dtype)
    loss: Tensor = model(given).square().mean()
    loss.backward()
    return loss


def assert_equal(one: list[Tensor], other: list[Tensor]) -> None:
    assert all(torch.equal(*each) for each in zip(one, other, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_bit_for_bit(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    make = OPTIMIZERS[name]
    undisturbed = trained(None, make, END, dtype=dtype)
    assert_equal(undisturbed, trained(tmp_path / "whole", make, END, dtype=dtype))
    assert_equal(undisturbed, trained(tmp_path / "cut", make, 4, END, dtype=dtype))


@pytest.mark.parametrize("name", ["sgd", "adamw", "adafactor", "precise", "lookahead"])
@pytest.mark.parametrize("end", [2, 3], ids=["before the first update", "after it"])
def test_a_save_before_the_first_update_changes_nothing(name: str, end: int, tmp_path: Path) -> None:
    undisturbed = trained(None, OPTIMIZERS[name], END, moves_from=3)
    assert_equal(undisturbed, trained(tmp_path, OPTIMIZERS[name], end, END, moves_from=3))


@pytest.mark.parametrize("name", ["sgd", "adamw", "adafactor"])
@pytest.mark.parametrize("thawed_at", [0, 6], ids=["for good", "for a while"])
def test_what_is_frozen_keeps_its_moments(name: str, thawed_at: int, tmp_path: Path) -> None:
    def freeze(model: Net, step: int) -> None:
        if step == 0:  # as a script that is begun again decides before it makes its optimizer
            return
        model.first.requires_grad_(not (step >= 3 and (not thawed_at or step < thawed_at)))

    undisturbed = trained(None, OPTIMIZERS[name], END, before=freeze)
    assert_equal(undisturbed, trained(tmp_path, OPTIMIZERS[name], 4, END, before=freeze))


def test_sparse_gradients_and_a_table_that_never_had_one(tmp_path: Path) -> None:
    def go(folder: Path, *ends: int) -> list[Tensor]:
        for end in ends:
            torch.manual_seed(0)
            model = nn.ModuleList([nn.Embedding(5, 2, sparse=True), nn.Embedding(5, 2, sparse=True)])
            optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.1)
            saves = Checkpointer(Standalone(folder.as_uri()), model=model, optimizer=optimizer, every_steps=1)
            for _, number in saves.steps(range(100), until=end):
                model[0](torch.tensor([number % 5])).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            saves.close()
        return [each.detach() for each in model.parameters()]

    assert_equal(go(tmp_path / "whole", 6), go(tmp_path / "cut", 3, 6))


def test_a_scheduler_that_begins_at_a_later_epoch_finds_what_it_had_put_into_the_groups(tmp_path: Path) -> None:
    rates = []
    for end in (3, 6):
        model = nn.Linear(2, 1)
        optimizer = SGD(model.parameters(), lr=0.1)
        saves = Checkpointer(Standalone(tmp_path.as_uri()), model=model, optimizer=optimizer, every_steps=1)
        scheduler = None
        for step, _ in saves.steps(range(100), until=end):
            if scheduler is None:
                scheduler = LambdaLR(optimizer, lambda n: 1 / (n + 1), last_epoch=step - 2)
            rates.append(round(optimizer.param_groups[0]["lr"], 6))
            optimizer.step()
            scheduler.step()
        saves.close()
    assert rates[:3] == [0.1, 0.05, 0.033333]
    assert optimizer.param_groups[0]["initial_lr"] == 0.1


class Average:
    """Made at its first update."""

    def __init__(self) -> None:
        self.shadow: dict[str, Tensor] = {}

    def update(self, model: nn.Module) -> None:
        for name, each in model.named_parameters():
            self.shadow[name] = self.shadow.get(name, each.detach().clone()).lerp(each.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.shadow)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow = dict(state)


class Notes:
    """What grows with time, of many kinds."""

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {"tensors": [], "numbers": [], "by step": {}, "nothing": {}}

    def update(self, step: int) -> None:
        self.kept["tensors"].append(torch.tensor([float(step)]))
        self.kept["numbers"].append(step)
        self.kept["by step"][step] = {"best": step / 2, None: (1, "two")}
        self.kept[f"seen {step}"] = torch.ones(step)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.kept)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = dict(state)


def test_further_objects_get_what_was_saved_of_them_whole(tmp_path: Path) -> None:
    def go(folder: Path, *ends: int) -> tuple[Any, ...]:
        for end in ends:
            torch.manual_seed(0)
            model, average, notes = Net(), Average(), Notes()
            optimizer, other = SGD(model.first.parameters(), lr=0.1), AdamW(model.last.parameters(), lr=0.1)
            saves = Checkpointer(
                Standalone(folder.as_uri()),
                model=model,
                optimizer=optimizer,
                every_steps=1,
                extra={"average": average, "notes": notes, "other": other},
            )
            for step, number in saves.steps(itertools.count(), until=end):
                gradients(model, number, torch.float32)
                optimizer.step()
                other.step()
                model.zero_grad()
                average.update(model)
                notes.update(step)
            saves.close()
        return average.shadow, notes.kept, other.state_dict(), dict(model.named_parameters())

    # Past ten, whose names come before those of two to nine.
    whole, cut = go(tmp_path / "whole", 13), go(tmp_path / "cut", 12, 13)
    assert_same(whole, cut)


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype
    elif isinstance(one, dict):
        assert set(one) == set(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for each in zip(one, other, strict=True):
            assert_same(*each)
    else:
        assert one == other


def saved(folder: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """After one step."""
    saves = Checkpointer(Standalone(folder.as_uri()), model=model, optimizer=optimizer, every_steps=1)
    for _ in saves.steps(range(100), until=1):
        for each in model.parameters():
            each.grad = torch.ones_like(each)
        optimizer.step()
    saves.close()


def two(head: int = 2) -> nn.ModuleDict:
    torch.manual_seed(head)
    return nn.ModuleDict({"body": nn.Linear(3, 3), "head": nn.Linear(3, head)})


def adam(model: nn.Module) -> AdamW:
    return AdamW(model.parameters())


def restored(folder: Path, model: nn.Module, optimizer: Any, **more: Any) -> None:
    saves = Checkpointer(Standalone(folder.as_uri()), model=model, optimizer=optimizer, **more)
    next(iter(saves.steps(range(100), until=50)))


def test_what_the_script_has_no_longer_is_refused_with_names_and_the_way_out(tmp_path: Path) -> None:
    saved(tmp_path, model := two(), adam(model))
    body = nn.ModuleDict({"body": two()["body"]})
    with pytest.raises(Unfit, match=r"holds what the script has not got: 8 names: .*head.*may_be_left_over="):
        restored(tmp_path, body, adam(body))
    restored(tmp_path, body, optimizer := adam(body), may_be_left_over=["head.*"])
    assert torch.equal(body["body"].weight, model["body"].weight)
    assert len(optimizer.state) == 2


def test_what_is_new_in_the_script_is_refused_too_unless_it_may_be_missing(tmp_path: Path) -> None:
    body = nn.ModuleDict({"body": two()["body"]})
    saved(tmp_path, body, adam(body))
    with pytest.raises(Unfit, match=r"does not hold 2 names: model.head.*may_be_missing="):
        restored(tmp_path, model := two(), adam(model))
    head = (model := two())["head"].weight.clone()
    restored(tmp_path, model, optimizer := adam(model), may_be_missing=["head"])
    assert torch.equal(model["head"].weight, head)
    assert len(optimizer.state) == 2


def test_a_head_of_another_size_stays_new_where_both_is_allowed(tmp_path: Path) -> None:
    saved(tmp_path, model := two(2), adam(model))
    with pytest.raises(Unfit, match=r"model.head.weight: the checkpoint has \[2, 3\]"):
        restored(tmp_path, larger := two(5), adam(larger), may_be_missing=["head.*"])
    larger = two(5)
    restored(tmp_path, larger, optimizer := adam(larger), may_be_missing=["head.*"], may_be_left_over=["head.*"])
    assert torch.equal(larger["body"].weight, model["body"].weight)
    assert len(optimizer.state) == 2


def test_another_optimizer_is_told_by_its_settings(tmp_path: Path) -> None:
    saved(tmp_path, model := two(), adam(model))
    with pytest.raises(Unfit, match="it was another optimizer"):
        restored(tmp_path, model, SGD(model.parameters(), lr=0.1, momentum=0.9))


def test_a_setting_and_a_meter_that_are_new_keep_what_they_begin_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, model := two(), adam(model))
    optimizer = AdamW([{"params": list(model.parameters()), "new": 7}])
    restored(tmp_path, model, optimizer, extra={"meter": Notes()})
    assert optimizer.param_groups[0]["new"] == 7
    assert "extra.meter" in caplog.text
    assert "optimizer.param_groups.0.new" in caplog.text


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda model: [adam(model)], r"optimizer: '1 optimizers'.*extra="),
        (lambda model: object(), r"optimizer: 'object'.*param_groups"),
        (lambda model: adam(two()), r"optimizer.param_groups\[0\].params\[0\].*has not got"),
    ],
    ids=["a list", "no optimizer", "of another model"],
)
def test_what_can_never_be_saved_is_refused_when_the_checkpointer_is_made(make: Make, says: str) -> None:
    model = two()
    with pytest.raises(InvalidInput, match=says):
        Checkpointer(Standalone(), model=model, optimizer=make(model))


class OneTensorEach(SGD):
    """Keeps a tensor for each parameter, and no dictionary."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = torch.zeros_like(parameter)


def test_what_an_optimizer_keeps_has_no_truth_value() -> None:
    model = nn.Linear(2, 2)
    optimizer = OneTensorEach(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert {*optimizerstate.state_of(model, optimizer)["state"]} == {"weight", "bias"}
