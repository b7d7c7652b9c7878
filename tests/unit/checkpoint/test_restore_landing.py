"""Blocks that are read to where they belong, without a stop in between."""

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from holdfast.checkpoint.format.index import Box, StoredChunk, StoredTensor
from holdfast.checkpoint.format.manifest import BLOCK_BYTES, FORMAT, Manifest, record_of
from holdfast.checkpoint.restore.blocks import BlockMap, Wants
from holdfast.checkpoint.restore.strip import Strip, Target
from holdfast.checkpoint.storage.local import LocalFile

FILE = "__0_0.distcp"
CONTENT = random.Random(7).randbytes(BLOCK_BYTES + 100_000)
SMALL = StoredTensor(
    dtype="uint8",
    shape=(40,),
    chunks=(StoredChunk(file=FILE, start=100, length_bytes=60, payload=110, box=Box((0,), (40,))),),
)


def wants() -> Wants:
    manifest = Manifest(FORMAT, 1, 1, None, 1, 1, {FILE: record_of([memoryview(CONTENT)])})
    return Wants(BlockMap(manifest, {"small": SMALL}))


def blank(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)


def land(wanted: Wants, path: Path, block: int) -> bytes | None:
    """What is beside afterwards; None where the block does not land."""
    path.write_bytes(CONTENT)
    beside = bytearray(min(BLOCK_BYTES, len(CONTENT) - block * BLOCK_BYTES))
    parts = wanted.landing(block, memoryview(beside))
    if parts is None:
        return None
    assert sum(part.nbytes for part in parts) == len(beside)
    file = LocalFile(path)
    assert file.read_across(block * BLOCK_BYTES, parts) == len(beside)
    file.close()
    return bytes(beside)


def test_tensors_get_their_bytes_and_what_lies_between_goes_beside(tmp_path: Path) -> None:
    wanted, first, second = wants(), blank(BLOCK_BYTES - 1000), blank(90_000)
    wanted.add(Target(first), [(FILE, Strip(start=500, row_bytes=first.nbytes, at=0))])
    wanted.add(Target(second), [(FILE, Strip(start=BLOCK_BYTES - 200, row_bytes=second.nbytes, at=0))])
    small = blank(40)
    wanted.add(Target(small), [(FILE, Strip(start=110, row_bytes=40, at=0))])
    for block in (0, 1):
        beside = land(wanted, tmp_path / "file", block)
        assert beside is not None
        assert block or beside[:500] == CONTENT[:500], "what is common is told from there"
    assert bytes(first.numpy()) == CONTENT[500 : BLOCK_BYTES - 500]
    assert bytes(second.numpy()) == CONTENT[BLOCK_BYTES - 200 :][:90_000]


def columns() -> tuple[Target, Strip]:
    return Target(blank(BLOCK_BYTES)), Strip(start=0, row_bytes=4, at=0, rows=900_000, stride=4, at_stride=4)


def a_little() -> tuple[Target, Strip]:
    return Target(blank(1000)), Strip(start=5, row_bytes=1000, at=0)


@pytest.mark.parametrize("those", [[columns()], [a_little()]])
def test_what_is_scattered_or_little_does_not_land(those: Sequence[tuple[Target, Strip]], tmp_path: Path) -> None:
    wanted = wants()
    for target, strip in those:
        wanted.add(target, [(FILE, strip)])
    assert land(wanted, tmp_path / "file", 0) is None


def test_bytes_that_two_tensors_want_do_not_land(tmp_path: Path) -> None:
    wanted = wants()
    for start in (0, 1000):
        wanted.add(Target(blank(3 << 20)), [(FILE, Strip(start=start, row_bytes=3 << 20, at=0))])
    assert land(wanted, tmp_path / "file", 0) is None


def test_a_read_that_stops_early_goes_on_in_the_middle_of_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(CONTENT[:1000])
    whole = os.preadv

    def early(descriptor: int, parts: Sequence[memoryview], offset: int) -> int:
        return whole(descriptor, [parts[0][:7]], offset)

    monkeypatch.setattr(os, "preadv", early)
    memories = [bytearray(10), bytearray(300), bytearray(800)]
    file = LocalFile(tmp_path / "file")
    assert file.read_across(0, [memoryview(each) for each in memories]) == 1000
    file.close()
    assert b"".join(memories)[:1000] == CONTENT[:1000]
