"""Which bytes of a stored tensor go where, as rows of equal length at equal distances.

Any box of a box is one such strip, or a few: a slice of the first dimension is a single row, a slice of columns
one row per row of the tensor. Strips are cut at block boundaries, so that a block can be put to use as soon as it
is read, wherever it begins and ends.
"""

import itertools
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from holdfast.checkpoint.format.index import Box


class Strip(NamedTuple):
    """`rows` rows of `row_bytes`: row i lies at `start + i * stride` in the file, and belongs at
    `at + i * at_stride` of the target. All in bytes; with one row, the strides mean nothing.
    """

    start: int
    row_bytes: int
    at: int
    rows: int = 1
    stride: int = 0
    at_stride: int = 0

    @property
    def end(self) -> int:
        return self.start + (self.rows - 1) * self.stride + self.row_bytes

    @property
    def size_bytes(self) -> int:
        return self.rows * self.row_bytes


def strips_of(chunk: Box, wanted: Box, *, payload: int, itemsize: int) -> Iterator[Strip]:
    """What of `chunk`, stored contiguous from `payload`, belongs into contiguous memory for `wanted`. Nothing when
    they have nothing in common.
    """
    common = chunk.overlap(wanted)
    if common is None:
        return
    theirs, ours = _strides(chunk, itemsize), _strides(wanted, itemsize)
    # From this dimension on what is common lies in one piece, both there and here.
    split = len(common.sizes)
    while split and common.sizes[split - 1] == chunk.sizes[split - 1] == wanted.sizes[split - 1]:
        split -= 1
    split = max(split - 1, 0)
    start = payload + _dot(common.offsets, theirs) - _dot(chunk.offsets, theirs)
    at = _dot(common.offsets, ours) - _dot(wanted.offsets, ours)
    row_bytes = itemsize * prod(common.sizes[split:])
    if split == 0:
        yield Strip(start=start, row_bytes=row_bytes, at=at)
        return
    for place in itertools.product(*map(range, common.sizes[: split - 1])):
        yield Strip(
            start=start + _dot(place, theirs),
            row_bytes=row_bytes,
            at=at + _dot(place, ours),
            rows=common.sizes[split - 1],
            stride=theirs[split - 1],
            at_stride=ours[split - 1],
        )


def cut(strip: Strip, begin: int, end: int) -> Iterator[Strip]:
    """The parts of the strip between `begin` and `end` of the file: whole rows, and what is left of a row that the
    boundary divides.
    """
    if strip.rows == 1:
        start, stop = max(strip.start, begin), min(strip.end, end)
        if start < stop:
            yield Strip(start=start, row_bytes=stop - start, at=strip.at + start - strip.start)
        return
    first = max(0, (begin - strip.start - strip.row_bytes) // strip.stride + 1)
    last = min(strip.rows, -((strip.start - end) // strip.stride))  # one beyond
    whole_first = max(0, -((strip.start - begin) // strip.stride))
    whole_last = min(strip.rows, (end - strip.start - strip.row_bytes) // strip.stride + 1)
    if whole_first >= whole_last:
        whole_first = whole_last = last
    for number in range(first, whole_first):
        yield from cut(_row(strip, number), begin, end)
    if whole_first < whole_last:
        yield _row(strip, whole_first)._replace(
            rows=whole_last - whole_first, stride=strip.stride, at_stride=strip.at_stride
        )
    for number in range(whole_last, last):
        yield from cut(_row(strip, number), begin, end)


def _row(strip: Strip, number: int) -> Strip:
    start, at = strip.start + number * strip.stride, strip.at + number * strip.at_stride
    return Strip(start=start, row_bytes=strip.row_bytes, at=at)


def _strides(box: Box, itemsize: int) -> list[int]:
    """Bytes from one place to the next, by dimension."""
    return [itemsize * prod(box.sizes[dimension + 1 :]) for dimension in range(len(box.sizes))]


def _dot(places: tuple[int, ...], strides: list[int]) -> int:
    return sum(place * stride for place, stride in zip(places, strides, strict=False))


Bytes = npt.NDArray[np.uint8]


class Target:
    """The memory that a stored tensor is read into, the live parameter itself, as plain bytes. What is not
    contiguous is read beside and copied by `finish`.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._live = tensor
        self._whole = (
            tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)
        )
        self._bytes = self._whole.reshape(-1).view(torch.uint8)
        self._host: Bytes | None = self._bytes.numpy() if self._bytes.device.type == "cpu" else None

    @classmethod
    def of_bytes(cls, length_bytes: int) -> "Target":
        """Fresh host memory."""
        return cls(torch.empty(length_bytes, dtype=torch.uint8))

    def put(self, strip: Strip, block: Bytes, base: int) -> None:
        """Copy the strip out of `block`, which begins at `base` of the file. Other threads run
        meanwhile, but for the smallest.
        """
        if self._host is not None:
            _rows(self._host, strip.at, strip.at_stride, strip)[...] = _rows(
                block, strip.start - base, strip.stride, strip
            )
            return
        source = torch.from_numpy(np.ascontiguousarray(_rows(block, strip.start - base, strip.stride, strip)))
        shape, strides = (strip.rows, strip.row_bytes), (strip.at_stride or strip.row_bytes, 1)
        # An offset given to as_strided counts from the storage, in which others may lie before this tensor.
        self._bytes[strip.at :].as_strided(shape, strides).copy_(source)

    def memory(self, strip: Strip) -> memoryview | None:
        """Where the strip belongs, if that is host memory in one piece."""
        if self._host is None or strip.rows != 1:
            return None
        return self._host.data[strip.at : strip.at + strip.row_bytes]

    def finish(self) -> None:
        """All of it was put."""
        if self._whole is not self._live:
            self._live.copy_(self._whole)

    def content(self) -> Bytes:
        """The bytes, on the host."""
        return self._bytes.cpu().numpy()


def _rows(memory: Bytes, start: int, stride: int, strip: Strip) -> Bytes:
    """A view of the strip's rows. Raises when they do not lie within `memory`."""
    if strip.rows == 1:
        return memory[start : start + strip.row_bytes].reshape(1, strip.row_bytes)
    shape = (strip.rows, strip.row_bytes)
    return np.ndarray(shape, dtype=np.uint8, buffer=memory, offset=start, strides=(stride, 1))
