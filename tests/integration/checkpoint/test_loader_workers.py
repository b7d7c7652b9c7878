"""Workers of torchdata's loader, which waits for each of them, end at once with a round."""

import gc
import time
from typing import Any

import pytest
from torch.utils.data import Dataset, _utils
from torchdata.stateful_dataloader import StatefulDataLoader

from holdfast.trainer.subprocesses import PATIENCE, loaders_end_at_once

# What torchdata asks of torch.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


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


@pytest.mark.parametrize("data", [Numbers(), Stubborn()], ids=["idle", "busy"])
def test_a_loader_that_is_collected_does_not_wait_for_its_workers(data: Numbers) -> None:
    batches: Any = iter(StatefulDataLoader(data, num_workers=2))
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
