"""Workers of loaders end at once with a round, and a start method is set anew in each."""

import multiprocessing
from collections.abc import Iterator

import pytest
import torch
from loader_ends import Numbers, Stubborn, assert_nobody_waits_for_its_workers
from torch.utils.data import DataLoader, _utils

from holdfast.trainer.subprocesses import PATIENCE, start_method_kept


@pytest.fixture
def start_method() -> Iterator[None]:
    before = multiprocessing.get_start_method(allow_none=True)
    yield
    multiprocessing.set_start_method(before, force=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("before", [None, "fork"])
def test_a_start_method_may_be_set_in_each_round(before: str | None, start_method: None) -> None:
    multiprocessing.set_start_method(before, force=True)  # type: ignore[arg-type]
    for _ in range(2):
        with start_method_kept():
            multiprocessing.set_start_method("spawn", force=before is not None)
            assert multiprocessing.get_start_method() == "spawn"
        assert multiprocessing.get_start_method(allow_none=True) == before


def test_a_start_method_is_what_it_was_when_the_round_breaks_off(start_method: None) -> None:
    multiprocessing.set_start_method(None, force=True)  # type: ignore[arg-type]

    def train() -> None:
        torch.multiprocessing.set_start_method("forkserver")
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"), start_method_kept():
        train()
    assert multiprocessing.get_start_method(allow_none=True) is None


@pytest.mark.parametrize("data", [Numbers(), Stubborn()], ids=["idle", "busy"])
def test_loaders_that_are_collected_do_not_wait_for_their_workers(data: Numbers) -> None:
    assert_nobody_waits_for_its_workers(DataLoader, data)
    assert getattr(_utils, PATIENCE) == 5.0
