import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.format.manifest import BLOCK_BYTES
from holdfast.checkpoint.restore.blockpool import BlockPool

RANKS = 3


class Table:
    """What ranks that are threads say to each other."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(RANKS, timeout=20)
        self.said: list[bytes] = [b""] * RANKS


class Seat:
    """A group of such ranks."""

    def __init__(self, rank: int, table: Table) -> None:
        self.rank = rank
        self._table = table

    def exchange(self, words: bytes) -> list[bytes]:
        self._table.said[self.rank] = words
        self._table.barrier.wait()
        heard = list(self._table.said)
        self._table.barrier.wait()
        return heard


def on_all_ranks(work: Callable[[Any], object]) -> list[object]:
    """What each rank's work returns, or the error that ended it."""

    def live(seat: Seat) -> object:
        try:
            return work(seat)
        except OSError as error:
            return error
        except RuntimeError as error:
            table.barrier.abort()  # As others hear of a process that ends.
            return error

    table = Table()
    with ThreadPoolExecutor(RANKS) as threads:
        return list(threads.map(live, [Seat(rank, table) for rank in range(RANKS)]))


def test_ranks_of_a_host_see_what_each_of_them_has_read_and_no_file_is_left(tmp_path: Path) -> None:
    def work(group: Any) -> object:
        pool = BlockPool.open(group, ["a", "a", "b"], tmp_path)
        pool.slot(group.rank, 1, 2)[:4] = f"of {group.rank}".encode()
        group.exchange(b"")
        return [bytes(pool.slot(rank, 1, 2)[:4]) for rank in range(RANKS) if pool.is_near(rank)]

    assert on_all_ranks(work) == [[b"of 0", b"of 1"], [b"of 0", b"of 1"], [b"of 2"]]
    assert list(tmp_path.iterdir()) == []


def test_where_memory_suffices_for_some_ranks_only_all_of_them_hear_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = [8 * BLOCK_BYTES] * (RANKS - 1)  # As in a container's /dev/shm of 64 MiB.
    reserve = os.posix_fallocate

    def reserve_if_there_is_room(descriptor: int, offset: int, length: int) -> None:
        try:
            room.remove(length)
        except ValueError:
            raise OSError(errno.ENOSPC, "No space left on device") from None
        reserve(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", reserve_if_there_is_room)
    refusals = on_all_ranks(lambda group: BlockPool.open(group, ["a"] * RANKS, tmp_path))
    assert {(type(each), "No space left on device" in str(each)) for each in refusals} == {(OSError, True)}
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_dies_meanwhile_leaves_the_others_without_files(tmp_path: Path) -> None:
    def work(group: Any) -> object:
        if group.rank == 0:
            raise RuntimeError("killed")
        return BlockPool.open(group, ["a"] * RANKS, tmp_path)

    assert all(isinstance(each, RuntimeError) for each in on_all_ranks(work))
    assert list(tmp_path.iterdir()) == []
