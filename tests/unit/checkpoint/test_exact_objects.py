"""What can be saved comes back as it was: keys, their order, kinds of tensors. What cannot is refused by name."""

import datetime
import enum
from collections import Counter, OrderedDict, deque, namedtuple
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.api.errors import InvalidInput
from holdfast.checkpoint import Checkpointer, Standalone
from holdfast.checkpoint.format import archive


class Mode(enum.StrEnum):
    FAST = "fast"


class Level(enum.IntEnum):
    LOW = 1


class Name(str):
    __slots__ = ()


Pair = namedtuple("Pair", "first second")


class Notes:
    def __init__(self, kept: Any) -> None:
        self.kept = kept

    def state_dict(self) -> Any:
        return self.kept

    def load_state_dict(self, state: Any) -> None:
        self.kept = state


class Keeping(torch.optim.Optimizer):
    """Keeps more of each parameter than tensors."""

    def __init__(self, parameters: Iterable[nn.Parameter], kept: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.kept = kept

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                self.state[each].setdefault("kept", self.kept)


class Scaled(nn.Linear):
    def __init__(self, kept: Any) -> None:
        super().__init__(2, 1)
        self.kept = kept

    def get_extra_state(self) -> Any:
        return self.kept

    def set_extra_state(self, state: Any) -> None:
        self.kept = state


def in_extra(folder: Path, kept: Any, until: int, change: Callable[[Any], Any] = lambda kept: kept) -> Any:
    model, notes = nn.Linear(2, 1), Notes(kept)
    train(
        folder,
        model,
        torch.optim.SGD(model.parameters()),
        until,
        lambda: notes.__init__(change(notes.kept)),
        notes,
    )  # type: ignore[misc]
    return notes.kept


def in_optimizer(folder: Path, kept: Any, until: int) -> Any:
    model = nn.Linear(2, 1)
    optimizer = Keeping(model.parameters(), kept)
    train(folder, model, optimizer, until)
    return optimizer.state[model.weight].get("kept")


def in_module(folder: Path, kept: Any, until: int) -> Any:
    model = Scaled(kept)
    train(folder, model, torch.optim.AdamW(model.parameters()), until)
    return model.kept


def train(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    until: int,
    change: Callable[[], object] = lambda: None,
    notes: Notes | None = None,
) -> None:
    run = Standalone(folder.as_uri())
    extra = {} if notes is None else {"notes": notes}
    saves = Checkpointer(run, model=model, optimizer=optimizer, every_steps=1, extra=extra)
    try:
        for step, _ in saves.steps(range(9), until=until):
            for each in model.parameters():
                each.grad = torch.ones_like(each)
            optimizer.step()
            if step == 3:
                change()
    finally:
        saves.close()


def told(value: Any) -> Any:
    """With the kinds and the order of all that is in it."""
    if isinstance(value, dict):
        return type(value), [(type(key), key, told(each)) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [told(each) for each in value]
    if isinstance(value, torch.Tensor):
        return value.layout, value.dtype, value.to_dense().tolist()
    return type(value), value


KEPT: dict[str, Callable[[], Any]] = {
    "tuples as keys": lambda: {"seen": {(0, 1): 3.0, ("x", (2, None)): torch.ones(2)}},
    "NumPy's numbers as keys": lambda: {"seen": {np.int64(3): 1.0, np.float32(0.5): torch.ones(1)}},
    "keys of several kinds": lambda: {"seen": {True: 1, 0: 2, None: 3, 2.5: torch.ones(1), b"x": 4}},
    "an order": lambda: {"z": torch.zeros(1), "b": 1, "a": torch.ones(1), "c": None},
    "kinds of dictionaries": lambda: {"o": OrderedDict(z=1, a=torch.ones(1)), "n": Counter("aab"), "e": {}},
    "a sparse tensor": lambda: {"mask": torch.eye(3).to_sparse()},
    "empty ones in a list": lambda: {"groups": [{}, []], "d": [], "e": {}},
    "tensors in a tuple": lambda: {"pair": (torch.eye(2), [torch.ones(1)])},
    "NumPy's numbers": lambda: {"best": np.float64(0.5), "seen": np.int64(3)},
}


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("holder", [in_extra, in_optimizer, in_module])
def test_what_was_saved_comes_back_as_it_was(holder: Callable[..., Any], kept: str, tmp_path: Path) -> None:
    holder(tmp_path, KEPT[kept](), 2)
    assert told(holder(tmp_path, {}, 0)) == told(KEPT[kept]())


@pytest.mark.parametrize("holder", [in_extra, in_optimizer, in_module])
def test_a_key_that_is_a_kind_of_text_comes_back_as_that_text(holder: Callable[..., Any], tmp_path: Path) -> None:
    text = {Mode.FAST: torch.ones(1), Name("x"): {np.str_("y"): 2}}
    holder(tmp_path, {"by": text}, 2)
    found = holder(tmp_path, {}, 0)["by"]
    assert told(found) == told({"fast": torch.ones(1), "x": {"y": 2}})
    assert found[Mode.FAST] == 1


def test_a_sparse_tensor_with_indices_beyond_it_is_not_loaded() -> None:
    forged = torch.sparse_coo_tensor(torch.tensor([[0, 9]]), torch.ones(2), (3,), check_invariants=False)
    with pytest.raises(RuntimeError, match="found index 9"):
        archive.unpack_object(archive.pack_object(forged))


@pytest.mark.parametrize("empty", [[], {}])
def test_what_begins_empty_and_comes_back_full_is_not_said_to_be_missing(
    empty: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full = [torch.ones(1), torch.ones(2)] if empty == [] else {"a": torch.ones(1)}
    in_extra(tmp_path, {"items": full}, 2)
    assert told(in_extra(tmp_path, {"items": empty, "new": 1}, 0)) == told({"items": full})
    assert [each.getMessage() for each in caplog.records if "kept as the script" in each.getMessage()] == [
        "kept as the script made it, step-00000002 has none of it names=extra.notes.new"
    ]


REFUSED: dict[str, tuple[Any, str]] = {
    "an enum of text": ({"mode": Mode.FAST}, "mode"),
    "an enum of numbers": ({"level": [Level.LOW]}, "level"),
    "a kind of text": ({"name": Name("x")}, "name"),
    "a deque": ({"last": deque([1])}, "last"),
    "a named tuple": ({"pair": Pair(1, 2)}, "pair"),
    "a frozen set": ({"seen": (frozenset({1}),)}, "seen"),
    "an enum as a key": ({"by level": {Level.LOW: torch.ones(1)}}, "by level"),
    "a date in a key": ({"by day": {(datetime.date(2026, 11, 29), 1): 1}}, "by day"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_saved_is_refused_before_the_first_step(kind: str, tmp_path: Path) -> None:
    kept, name = REFUSED[kind]
    with pytest.raises(InvalidInput, match=rf"extra\.notes\.{name}"):
        in_extra(tmp_path, kept, 2)
    assert not list(tmp_path.glob("step-*"))


@pytest.mark.parametrize("kind", REFUSED)
def test_what_comes_to_be_something_else_is_refused_at_the_next_save(kind: str, tmp_path: Path) -> None:
    kept, name = REFUSED[kind]
    with pytest.raises(InvalidInput, match=rf"extra\.notes\.{name}"):
        in_extra(tmp_path, {name: None}, 6, lambda _: kept)
    assert sorted(each.name for each in tmp_path.glob("step-*")) == ["step-00000001", "step-00000002"]
