"""What a Checkpointer tells its run of the data that pass through it."""

from collections.abc import Iterable
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from holdfast.api.errors import InvalidInput
from holdfast.checkpoint import Checkpointer, Standalone


class Told(Standalone):
    """Remembers it, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[object] = []

    def took(self, step: int, batch: object, /) -> None:
        self.said.append((step, batch))

    def pass_begins(self) -> None:
        self.said.append("a further pass")

    def loader(self, *, workers: int) -> None:
        self.said.append(f"{workers} workers")


def passed(*data: Iterable[object], compares_batches: bool = True) -> list[object]:
    run, model = Told(), torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    checkpointer = Checkpointer(run, model=model, optimizer=optimizer, compares_batches=compares_batches)
    for each in data:
        for step, batch in checkpointer.steps(each):
            assert not compares_batches or run.said[-1] == (step, batch), "before the loop has it"
    return run.said


@pytest.mark.parametrize("data", [5, None, object(), torch.nn.Linear])
def test_data_that_cannot_be_gone_through_are_the_scripts_mistake(data: object) -> None:
    with pytest.raises(InvalidInput, match="data: "):
        passed(data)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"every_steps": "10"}, {"keep": 2.5}, {"every_steps": 0}, {"keep": -1.0}])
def test_a_number_of_a_checkpointer_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(InvalidInput, match="write at least 1"):
        Checkpointer(Told(), model=model, optimizer=torch.optim.SGD(model.parameters()), **wrong)


@pytest.mark.parametrize(
    "given", [10, numpy.int64(10), numpy.int32(10), torch.tensor(10), 10.0, numpy.float64(10)]
)
@pytest.mark.parametrize("name", ["every_steps", "keep"])
def test_a_whole_number_of_any_kind_is_one_for_a_checkpointer(name: str, given: Any) -> None:
    model = torch.nn.Linear(1, 1)
    wanted: dict[str, Any] = {name: given}
    made = Checkpointer(Told(), model=model, optimizer=torch.optim.SGD(model.parameters()), **wanted)
    assert type(getattr(made, name)) is int
    assert getattr(made, name) == 10


def test_each_batch_is_told_and_each_further_pass() -> None:
    assert passed("ab", "a") == [(1, "a"), (2, "b"), "a further pass", (3, "a")]


def test_a_script_that_tells_by_itself_is_not_doubled() -> None:
    assert passed("ab", compares_batches=False) == []


def test_of_a_loader_of_torch_it_is_told_how_many_processes_it_has() -> None:
    assert passed(DataLoader(TensorDataset(torch.ones(1))), compares_batches=False) == ["0 workers"]
