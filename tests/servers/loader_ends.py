"""Loaders whose workers are to end at once, though they are idle or busy."""

import gc
import time
from typing import Any

from torch.utils.data import Dataset, _utils

from holdfast.trainer.subprocesses import PATIENCE, loaders_end_at_once


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


def assert_nobody_waits_for_its_workers(make: Any, data: Numbers) -> None:
    """A loader that `make` makes of the data is collected, in a cycle, while its workers live."""
    batches = iter(make(data, num_workers=2))
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
