"""Which bytes of a stored tensor go where, as rows of equal length at equal distances.

Any box of a box is one such strip, or a few: a slice of the first dimension is a single row, a slice of columns
one row per row of the tensor. Strips are cut at block boundaries, so that a block can be put to use as soon as it
is read, wherever it begins and ends.
"""

import itertools
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from holdfast.checkpoint.index import Box


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
    split = _first_contiguous(common, chunk, wanted)
    start = payload + _distance(common, chunk, theirs)
    at = _distance(common, wanted, ours)
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
        for number in range(first, last):
            yield from cut(_row(strip, number), begin, end)
        return
    for number in range(first, whole_first):
        yield from cut(_row(strip, number), begin, end)
    yield Strip(
        start=strip.start + whole_first * strip.stride,
        row_bytes=strip.row_bytes,
        at=strip.at + whole_first * strip.at_stride,
        rows=whole_last - whole_first,
        stride=strip.stride,
        at_stride=strip.at_stride,
    )
    for number in range(whole_last, last):
        yield from cut(_row(strip, number), begin, end)


def _row(strip: Strip, number: int) -> Strip:
    start, at = strip.start + number * strip.stride, strip.at + number * strip.at_stride
    return Strip(start=start, row_bytes=strip.row_bytes, at=at)


def _first_contiguous(common: Box, chunk: Box, wanted: Box) -> int:
    """From which dimension on what is common lies in one piece, both there and here."""
    split = len(common.sizes)
    while split and common.sizes[split - 1] == chunk.sizes[split - 1] == wanted.sizes[split - 1]:
        split -= 1
    return max(split - 1, 0)


def _strides(box: Box, itemsize: int) -> list[int]:
    """Bytes from one place to the next, by dimension."""
    return [itemsize * prod(box.sizes[dimension + 1 :]) for dimension in range(len(box.sizes))]


def _distance(inner: Box, outer: Box, strides: list[int]) -> int:
    offsets = [mine - its for mine, its in zip(inner.offsets, outer.offsets, strict=True)]
    return _dot(offsets, strides)


def _dot(places: list[int] | tuple[int, ...], strides: list[int]) -> int:
    return sum(place * stride for place, stride in zip(places, strides, strict=False))
