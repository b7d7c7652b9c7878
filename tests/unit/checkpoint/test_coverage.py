"""Every element in one chunk, every byte in one archive."""

import random

import numpy as np
import pytest
import torch

from holdfast.api.errors import Damaged
from holdfast.checkpoint.format.index import (
    ITEM_BYTES,
    Box,
    Index,
    StoredChunk,
    StoredObject,
    StoredTensor,
    find_gap,
    require_whole,
)
from holdfast.checkpoint.format.manifest import FORMAT, FileRecord, Manifest

Boxes = list[Box]


def cut_up(box: Box, source: random.Random, cuts: int) -> Boxes:
    """The box in pieces."""
    splits = [each for each, size in enumerate(box.sizes) if size > 1]
    if not cuts or not splits:
        return [box]
    at = source.choice(splits)
    first = source.randrange(1, box.sizes[at])
    sizes, offsets = list(box.sizes), list(box.offsets)
    sizes[at] = first
    one = Box(box.offsets, tuple(sizes))
    sizes[at], offsets[at] = box.sizes[at] - first, offsets[at] + first
    other = Box(tuple(offsets), tuple(sizes))
    left = source.randrange(cuts)
    return cut_up(one, source, left) + cut_up(other, source, cuts - 1 - left)


def moved(boxes: Boxes, source: random.Random) -> Boxes:
    """One place or size changed, or a box dropped or repeated."""
    boxes = list(boxes)
    which = source.randrange(len(boxes))
    match source.choice(("drop", "repeat", "offsets", "sizes")):
        case "drop":
            del boxes[which]
        case "repeat":
            boxes[source.randrange(len(boxes))] = boxes[which]
        case field:
            box = boxes[which]
            values = list(getattr(box, field))
            at = source.randrange(len(values))
            values[at] = max(0, values[at] + source.choice((-1, 1)))
            parts = {"offsets": box.offsets, "sizes": box.sizes, field: tuple(values)}
            boxes[which] = Box(**parts)
    return boxes


def fills_once(shape: tuple[int, ...], boxes: Boxes) -> bool:
    """By counting."""
    filled = np.zeros(shape, dtype=int)
    for box in boxes:
        if any(end > size for end, size in zip(box.ends, shape, strict=True)):
            return False
        filled[tuple(slice(start, end) for start, end in zip(box.offsets, box.ends, strict=True))] += 1
    return bool((filled == 1).all())


def gap(shape: tuple[int, ...], boxes: Boxes) -> str | None:
    chunks = tuple(StoredChunk("__0_0.distcp", 0, 0, 0, box) for box in boxes)
    return find_gap({"t": StoredTensor("float32", shape, chunks)})


@pytest.mark.parametrize("seed", range(40))
def test_chunks_are_counted_as_an_array_counts_them(seed: int) -> None:
    source = random.Random(seed)
    shape = tuple(source.randrange(1, 6) for _ in range(source.randrange(1, 5)))
    boxes = cut_up(Box((0,) * len(shape), shape), source, source.randrange(8))
    source.shuffle(boxes)
    assert gap(shape, boxes) is None
    for _ in range(10):
        others = moved(boxes, source)
        assert (gap(shape, others) is None) == fills_once(shape, others)


@pytest.mark.parametrize(
    ("shape", "boxes", "is_whole"),
    [
        ((), [Box((), ())], True),
        ((), [Box((), ()), Box((), ())], False),
        ((), [], False),
        ((0, 3), [], True),
        ((0, 3), [Box((0, 0), (0, 3)), Box((0, 0), (0, 3))], True),
        ((0, 3), [Box((1, 0), (0, 3))], False),
        ((4,), [Box((0,), (4,)), Box((4,), (0,))], True),
        ((4,), [Box((0, 0), (4, 1))], False),
        ((2**50,), [Box((0,), (2**50,))], True),
        ((2,) * 64, [Box((0,) * 64, (1,) * 64)] * 3, False),
    ],
)
def test_scalars_nothing_and_what_is_too_large_to_count(
    shape: tuple[int, ...], boxes: Boxes, is_whole: bool
) -> None:
    assert (gap(shape, boxes) is None) == is_whole


def test_the_sizes_of_elements_are_torchs() -> None:
    known = {name: each.itemsize for name in dir(torch) if isinstance(each := getattr(torch, name), torch.dtype)}
    assert {name: known.get(name) for name in ITEM_BYTES} == dict(ITEM_BYTES)
    assert all(ITEM_BYTES.get(name, 1) <= size for name, size in known.items())


FILE = FileRecord(1000, ("0" * 32,))
ONE = StoredChunk("__0_0.distcp", 0, 200, 64, Box((0,), (8,)))


@pytest.mark.parametrize(
    ("chunk", "says"),
    [
        (ONE, None),
        (StoredChunk("__1_0.distcp", 0, 200, 64, ONE.box), "t is said to be in __1_0.distcp"),
        (StoredChunk("index.json", 0, 200, 64, ONE.box), "t is said to be in index.json"),
        (StoredChunk("__0_0.distcp", 900, 200, 964, ONE.box), "t would end at 1100"),
        (StoredChunk("__0_0.distcp", 100, 200, 99, ONE.box), "which is not in its archive"),
        (StoredChunk("__0_0.distcp", 0, 95, 64, ONE.box), "which is not in its archive"),
        (StoredChunk("__0_0.distcp", 450, 200, 514, ONE.box), "t and o lie in the same bytes"),
    ],
)
def test_what_an_index_says_of_the_files_is_what_they_can_hold(chunk: StoredChunk, says: str | None) -> None:
    files = {"__0_0.distcp": FILE, "index.json": FILE}
    manifest = Manifest(FORMAT, 1, 1, None, 1, 1, files)
    entries = {"t": StoredTensor("float32", (8,), (chunk,)), "o": StoredObject("__0_0.distcp", 500, 100)}
    found = Index(entries, {})
    if says is None:
        require_whole(found, manifest)
        return
    with pytest.raises(Damaged, match=says):
        require_whole(found, manifest)
