import random
from math import prod

import numpy as np
import pytest
import torch

from holdfast.checkpoint.format.index import Box
from holdfast.checkpoint.restore.strip import Strip, Target, cut, strips_of


def some_box(sizes: tuple[int, ...], source: random.Random) -> Box:
    """A box within a tensor, never empty."""
    begins = [source.randrange(size) for size in sizes]
    ends = [source.randrange(begin, size) + 1 for begin, size in zip(begins, sizes, strict=True)]
    return Box(tuple(begins), tuple(end - begin for begin, end in zip(begins, ends, strict=True)))


def part(whole: torch.Tensor, box: Box) -> torch.Tensor:
    return whole[box.within(Box((0,) * whole.dim(), tuple(whole.shape)))]


@pytest.mark.parametrize("seed", range(120))
def test_every_box_of_every_box_comes_out_as_a_slice_would(seed: int) -> None:
    source = random.Random(seed)
    shape = tuple(source.randint(1, 7) for _ in range(source.randint(0, 4)))
    dtype = source.choice([torch.float32, torch.uint8, torch.complex128])
    whole = torch.arange(prod(shape)).to(dtype).reshape(shape)
    chunk, wanted = some_box(shape, source), some_box(shape, source)
    payload, block_bytes = source.randrange(0, 128), source.choice([5, 16, 1000])
    stored = bytes(payload) + part(whole, chunk).contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    result = torch.zeros(wanted.sizes, dtype=dtype)
    target = Target(result)
    moved = 0
    for strip in strips_of(chunk, wanted, payload=payload, itemsize=dtype.itemsize):
        for begin in range(0, len(stored), block_bytes):
            block = np.frombuffer(stored[begin : begin + block_bytes], dtype=np.uint8)
            for piece in cut(strip, begin, begin + block_bytes):
                target.put(piece, block, begin)
                moved += piece.size_bytes
    expected = torch.zeros(wanted.sizes, dtype=dtype)
    common = chunk.overlap(wanted)
    if common is not None:
        expected[common.within(wanted)] = part(whole, common)
    assert torch.equal(result, expected)
    assert moved == (0 if common is None else common.volume * dtype.itemsize)


def test_a_slice_of_rows_is_one_piece_and_a_slice_of_columns_one_strip() -> None:
    chunk = Box((0, 0), (100, 40))
    assert list(strips_of(chunk, Box((10, 0), (20, 40)), payload=64, itemsize=4)) == [
        Strip(start=64 + 10 * 160, row_bytes=20 * 160, at=0)
    ]
    assert list(strips_of(chunk, Box((0, 10), (100, 20)), payload=64, itemsize=4)) == [
        Strip(start=64 + 40, row_bytes=80, at=0, rows=100, stride=160, at_stride=80)
    ]


def test_rows_that_a_boundary_divides_are_cut_and_the_others_stay_together() -> None:
    strip = Strip(start=0, row_bytes=10, at=0, rows=5, stride=20, at_stride=10)
    assert list(cut(strip, 5, 65)) == [
        Strip(start=5, row_bytes=5, at=5),
        Strip(start=20, row_bytes=10, at=10, rows=2, stride=20, at_stride=10),
        Strip(start=60, row_bytes=5, at=30),
    ]
    assert list(cut(strip, 10, 20)) == [], "nothing between two rows"


def test_a_tensor_that_is_not_contiguous_is_filled_when_it_is_finished() -> None:
    live = torch.zeros(3, 2).t()
    target = Target(live)
    content = np.arange(6, dtype=np.float32)
    target.put(Strip(start=0, row_bytes=24, at=0), content.view(np.uint8), 0)
    target.finish()
    assert live.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_on_a_device_a_tensor_within_a_larger_storage_is_filled_and_its_neighbours_are_left_alone() -> None:
    """As the weights of an LSTM on a GPU are, which all lie in one storage."""
    storage = torch.zeros(12)
    target = Target(storage[4:10].view(2, 3))
    target._host = None  # Memory that numpy cannot reach: stands in for a device.
    content = np.arange(1, 7, dtype=np.float32).view(np.uint8)
    target.put(Strip(start=0, row_bytes=4, at=8, rows=2, stride=12, at_stride=12), content, 0)
    target.put(Strip(start=0, row_bytes=8, at=0), content, 0)
    assert storage.tolist() == [0, 0, 0, 0, 1, 2, 1, 0, 0, 4, 0, 0]
