"""Restoring from the memory of other nodes, over real servers."""

import os
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from memory_rig import MIB, Node, Worker, nodes, noise, recollect_on, wait_until
from patience import patient

from holdfast.api.errors import Damaged
from holdfast.checkpoint.format import archive
from holdfast.checkpoint.format.manifest import record_of
from holdfast.checkpoint.memory.sharedbuffer import SharedBuffer
from holdfast.checkpoint.restore.recollect import Recollection


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[list[Node]]:
    """Two nodes that hold rank 0 and rank 1 of step 5 and the copy of the other's; the third is new."""
    with nodes(tmp_path, 3) as made:
        for rank in range(2):
            Worker(made[rank], rank=rank, world_size=2).snapshot(5, content(rank), made[1 - rank])
        for rank in range(2):
            wait_until(lambda rank=rank: made[1 - rank].held(5, rank))
        yield made


def content(rank: int) -> bytes:
    return archive.pack_object(tensor(rank))


def tensor(rank: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(noise(9 * MIB, rank)), dtype=torch.uint8)


def assert_whole(found: Recollection) -> None:
    checkpoint = found.candidates[0].open()
    assert checkpoint.manifest.step == 5
    for rank in range(2):
        read = checkpoint.read_object(f"part.{rank}")
        assert isinstance(read, torch.Tensor)
        assert torch.equal(read, tensor(rank))


def test_a_new_node_reads_everything_from_its_peers(trio: list[Node]) -> None:
    for found in recollect_on(trio):
        assert_whole(found)
        found.close()


def test_a_node_lost_with_its_memory_is_made_up_for_by_the_copy(trio: list[Node]) -> None:
    trio[1].kill()
    shutil.rmtree(trio[1].folder)
    for found in recollect_on([trio[0], trio[2]]):
        assert_whole(found)
        found.close()


def test_memory_is_read_even_if_the_nodes_own_server_is_dead(trio: list[Node]) -> None:
    trio[0].kill()
    for found in recollect_on(trio[:2]):
        assert_whole(found)
        found.close()


def test_a_peer_that_hangs_is_given_up_for_the_next_that_holds_the_image(trio: list[Node]) -> None:
    for path in trio[0].folder.glob("*.copy"):
        path.unlink()
    os.kill(trio[0].process.pid, signal.SIGSTOP)
    found = recollect_on([trio[0], trio[1], trio[2]], patience_s=patient(3.0))
    assert_whole(found[2])  # Rank 0's own node hangs; the copy is on the other one.
    for each in found:
        each.close()


def test_what_only_a_dead_peer_held_counts_as_damaged(trio: list[Node]) -> None:
    for node in trio[:2]:
        for path in node.folder.glob("*.copy"):
            path.unlink()
    first, second, third = recollect_on(trio)
    trio[1].kill()
    with pytest.raises(Damaged, match="out of reach"):
        assert_whole(third)
    for each in (first, second, third):
        each.close()


def test_a_damaged_block_is_had_from_another_node_by_its_hash(trio: list[Node]) -> None:
    (own,) = trio[0].folder.glob("*.own")
    SharedBuffer.open(own).image[5 * MIB] ^= 1
    image = content(0)
    first, second, third = recollect_on(trio)
    for block, start in zip(record_of([memoryview(image)]).blocks, range(0, len(image), 4 * MIB), strict=True):
        assert first.fetch(block) == third.fetch(block) == image[start : start + 4 * MIB]
    assert third.fetch("00" * 16) is None
    for each in (first, second, third):
        each.close()


def test_a_keeper_without_room_says_so_and_takes_the_copy_once_there_is_room(tmp_path: Path) -> None:
    with nodes(tmp_path, 2, "--patience-s", "2") as (ours, keeper):
        _, most = resource.prlimit(keeper.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(keeper.process.pid, resource.RLIMIT_FSIZE, (4 * MIB, most))
        buffer = Worker(ours).snapshot(1, noise(9 * MIB), keeper)
        wait_until(lambda: "no memory for a copy" in ours.log())
        held = buffer.read()
        assert held is not None
        assert held.copies == 0
        resource.prlimit(keeper.process.pid, resource.RLIMIT_FSIZE, (most, most))
        wait_until(lambda: keeper.held(1))
