"""Workers of loaders end at once with a round, and a start method is set anew in each."""

import gc
import multiprocessing
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, _utils

from holdfast.trainer.subprocesses import PATIENCE, loaders_end_at_once, start_method_kept


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, place: int) -> int:
        return place


class Stubborn(Numbers):
    """A worker that takes long over each sample."""

    def __getitem__(self, place: int) -> int:
        if place:
            time.sleep(60)
        return place


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
    batches: Any = iter(DataLoader(data, num_workers=2))
    next(batches)
    workers = list(batches._workers)
    assert len(workers) == 2
    cycle: list[object] = [batches]
    cycle.append(cycle)
    del batches, cycle
    began_s = time.monotonic()
    with loaders_end_at_once():
        gc.collect()
    assert time.monotonic() - began_s < getattr(_utils, PATIENCE), "not one of them was waited for"
    for worker in workers:
        worker.join(20)
        assert worker.exitcode is not None
    assert getattr(_utils, PATIENCE) == 5.0
