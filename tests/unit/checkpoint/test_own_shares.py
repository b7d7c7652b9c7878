"""Who stores what several ranks hold, how it is proved that they hold the same, and whose copy a rank restores."""

import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import xxhash

from holdfast.checkpoint.capture import content
from holdfast.checkpoint.capture.content import Contents, sums_of
from holdfast.checkpoint.capture.live import Claim, Look
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.capture.shard import Shard, shard_of
from holdfast.checkpoint.capture.shares import Share, Shares, share_out, unequal
from holdfast.checkpoint.format.index import Box, Index, Stored, StoredChunk, StoredObject, StoredTensor
from holdfast.checkpoint.format.manifest import FileRecord, Manifest
from holdfast.checkpoint.format.own import own_name, read_own
from holdfast.checkpoint.restore.stored import StoredCheckpoint

RANKS = 3


class Seat(SaveGroup):
    """A rank's place at a table: ranks are threads."""

    def __init__(self, rank: int, words: list[bytes], barrier: threading.Barrier) -> None:
        self.rank, self.world_size = rank, len(words)
        self._words, self._barrier = words, barrier

    def exchange(self, words: bytes) -> list[bytes]:
        self._words[self.rank] = words
        self._barrier.wait()
        heard = list(self._words)
        self._barrier.wait()
        return heard


def look(values: dict[str, Any], generation: int = 1) -> Look:
    shards: dict[str, Shard] = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and (shard := shard_of(name, value)) is not None:
            shards[name] = shard
    objects = {name: value for name, value in values.items() if name not in shards}
    return Look(generation, 1, {}, shards, objects, {name: (name,) for name in values})


def agreed(*turns: Callable[[int], dict[str, Any]]) -> list[list[Share]]:
    """What each rank agrees on, turn by turn, when rank r holds `turn(r)`."""
    words, barrier = [b""] * RANKS, threading.Barrier(RANKS, timeout=30)

    def live(rank: int) -> list[Share]:
        shares = Shares(Seat(rank, words, barrier))
        return [shares.agree(look(turn(rank))) for turn in turns]

    with ThreadPoolExecutor(RANKS) as threads:
        return list(threads.map(live, range(RANKS)))


def stored(found: list[list[Share]], turn: int) -> set[str]:
    names = [name for shares in found for name in shares[turn].names.values()]
    assert len(names) == len(set(names))
    return set(names)


@pytest.mark.parametrize(
    ("same", "other"),
    [
        (torch.zeros(3), torch.tensor([0.0, -0.0, 0.0])),
        (torch.zeros(9, dtype=torch.bfloat16), torch.full((9,), 1e-40, dtype=torch.bfloat16)),
        (torch.zeros(1 << 19), torch.zeros(1 << 19).index_fill_(0, torch.tensor([70_000]), 1.0)),
        ({"best": 1.0}, {"best": 2.0}),
        ({"best": torch.ones(2)}, {"best": torch.zeros(2)}),
        (torch.zeros(3), torch.zeros(4)),
    ],
    ids=["a sign", "a bit", "one of many", "a number", "a tensor in an object", "a size"],
)
def test_what_one_rank_holds_differently_is_stored_by_each_and_all_else_once(same: Any, other: Any) -> None:
    def turn(rank: int) -> dict[str, Any]:
        return {"extra.a": other if rank == 1 else same, "model.b": torch.ones(4), "scheduler": {"step": 3}}

    found = agreed(turn, turn)
    wanted = {"extra.a", "own.rank-00001.extra.a", "own.rank-00002.extra.a", "model.b", "scheduler"}
    assert stored(found, 0) == stored(found, 1) == wanted
    assert all(first is second for first, second in found), "nothing is laid out anew"


@pytest.mark.parametrize(
    ("one", "other"), [((1, 23), (12, 3)), (("ab", "c"), ("a", "bc"))], ids=["numbers", "texts"]
)
def test_neighbours_whose_contents_meet_are_told_apart(one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    contents, keys = Contents(), [("correct", ()), ("total", ())]
    first, second = (look({"correct": each[0], "total": each[1]}) for each in (one, other))
    assert contents.of_all(first, keys) != contents.of_all(second, keys)


def test_what_differed_once_stays_each_ranks_own() -> None:
    found = agreed(
        lambda rank: {"a": torch.zeros(2)},
        lambda rank: {"a": torch.full((2,), rank)},
        lambda rank: {"a": torch.zeros(2)},
    )
    own = {"a", "own.rank-00001.a", "own.rank-00002.a"}
    assert [stored(found, turn) for turn in range(3)] == [{"a"}, own, own]


def test_equal_objects_that_were_made_differently_are_equal() -> None:
    text = "".join(["one", "text"])

    def turn(rank: int) -> dict[str, Any]:
        return {
            "scheduler": {"a": [text, text], "b": ("x",)}
            if rank
            else {"a": ["onetext", "one" + "text"], "b": ("x",)}
        }

    assert stored(agreed(turn), 0) == {"scheduler"}


def test_only_ranks_that_hold_a_chunk_are_compared() -> None:
    """Two of three ranks hold one half of a tensor, the third the other one."""
    halves = [Claim("a", (0,), 8, "float32", (4,), (2,)), Claim("a", (2,), 8, "float32", (4,), (2,))]
    division = share_out([[halves[0]], [halves[0]], [halves[1]]])
    assert division.alike == {(0, 1): [("a", (0,))]}
    apart = share_out([[halves[0]], [halves[0]], [halves[1]]], frozenset({("a", (0,))}))
    assert apart.names == [{("a", (0,)): "a"}, {("a", (0,)): "own.rank-00001.a"}, {("a", (2,)): "a"}]
    assert unequal([{"x": "1"}, {"x": "1", "y": "2"}, {"y": "3"}]) == {"y"}


@pytest.mark.parametrize(
    "other", [Claim("a", (), 0), Claim("a", (0, 0), 4, "float32", (1, 1), (1, 1)), Claim("a", (), 4, "int64")]
)
def test_ranks_that_hold_no_one_kind_of_thing_keep_each_their_own(other: Claim) -> None:
    one = Claim("a", (0,), 4, "float32", (1,), (1,))
    division = share_out([[one], [other], [one]])
    assert division.names == [
        {one.key: "a"},
        {other.key: own_name(1, "a", ())},
        {one.key: own_name(2, "a", ())},
    ]
    assert not division.alike


def test_a_rank_that_holds_the_whole_of_what_others_hold_in_parts_keeps_it_for_itself() -> None:
    parts = [Claim("a", (at,), 8, "float32", (4,), (2,)) for at in (0, 2)]
    whole = Claim("a", (0,), 16, "float32", (4,), (4,))
    division = share_out([[whole], [parts[0]], [parts[1]], [whole]])
    own = [{("a", (0,)): own_name(rank, "a", ())} for rank in (0, 3)]
    assert division.names == [own[0], {("a", (0,)): "a"}, {("a", (2,)): "a"}, own[1]]


@pytest.mark.parametrize("size", [0, 5, 1 << 18, (1 << 20) + 3], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_sums_on_a_device_tell_contents_apart(size: int, dtype: torch.dtype) -> None:
    base = (torch.arange(size) % 7).to(dtype)
    first = [bytes(part) for part in sums_of([base])[0]]
    assert first == [bytes(part) for part in sums_of([base.clone(), base[:0]])[0]]
    assert sum(map(len, first)) <= max(1 << 20, base.nbytes // 64)
    changed = []
    for places in ([0], [size - 1], [0, size // 2], [1, 4097 % max(size, 1)]):
        if min(places) >= 0 and max(places) < size:
            other = base.clone()
            other.view(torch.uint8).view(size, -1)[places, -1] ^= 0x80  # the highest bits, an even number of them
            changed.append(other)
    if size > 2:
        swapped = base.clone()
        swapped[[0, 1]] = base[[1, 0]]
        changed.append(swapped)
    digests = {b"".join(bytes(part) for part in parts) for parts in sums_of([base, *changed])}
    assert len(digests) == len(changed) + 1


def test_a_digest_does_not_depend_on_where_and_how_a_tensor_lies() -> None:
    contents, values = Contents(), torch.randn(600, 900)
    keys = [("a", (0, 0))]
    assert contents.of_all(look({"a": values}), keys) == contents.of_all(look({"a": values.t().clone().t()}), keys)
    assert contents.of_all(look({"a": values}), keys) != contents.of_all(look({"a": values + 1}), keys)


@pytest.mark.parametrize(
    "lay_out",
    [
        lambda: torch.ones(8, 64, 64, 64).to(memory_format=torch.channels_last),
        lambda: torch.ones(1024, 2048).t(),
        lambda: torch.ones(2048, 512, dtype=torch.complex64).conj(),
    ],
    ids=["channels_last", "transposed", "conjugated"],
)
def test_no_more_copies_are_held_than_are_hashed(
    lay_out: Callable[[], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = [0]

    def watched(tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        copy = torch.empty(tuple(sizes), dtype=tensor.dtype).copy_(tensor)
        alive.add(copy)
        most[0] = max(most[0], len(alive))
        return copy

    tensors = {str(number): lay_out() for number in range(12)}
    keys = [(name, (0,) * each.dim()) for name, each in tensors.items()]
    before = Contents().of_all(look(tensors), keys)
    monkeypatch.setattr(content, "_plain", watched)
    assert Contents().of_all(look(tensors), keys) == before
    assert most[0] <= 9, "of 8 MiB each"
    most[0] = 0
    Contents().of_each(look(tensors), keys)
    assert most[0] <= 2


def test_the_digest_of_several_is_that_of_earlier_versions() -> None:
    """Ranks of one round may not, but snapshots of two may be compared."""
    tensors = {"a": torch.arange(5), "b": torch.arange(9 << 20, dtype=torch.uint8), "c": torch.zeros(0)}
    whole = xxhash.xxh3_128()
    for each in tensors.values():
        whole.update(each.nbytes.to_bytes(8, "little"))
        whole.update(each.numpy().tobytes() if each.nbytes < 1 << 20 else b"")
    whole.update(xxhash.xxh3_128_digest(tensors["b"].numpy().tobytes()))
    assert Contents().of_all(look(tensors), [(name, (0,)) for name in tensors]) == whole.hexdigest()


def tensor(file: str, box: Box, shape: tuple[int, ...]) -> StoredTensor:
    return StoredTensor("float32", shape, (StoredChunk(file, 0, 100, 64, box),))


def checkpoint(entries: dict[str, Stored], world_size: int) -> StoredCheckpoint:
    files = {file: FileRecord(200, ("0" * 32,)) for file in ("zero", "one", "two", "three")}
    manifest = Manifest(1, 4, 1, None, world_size, 4, files)
    return StoredCheckpoint(None, "step-00000004", manifest, Index(entries, {}))  # type: ignore[arg-type]


def test_a_name_of_ones_own_says_whose_what_and_where_it_is() -> None:
    assert read_own(own_name(3, "model.a", (0, 0))) == (3, (), "model.a")
    assert read_own(own_name(12345, "model.a-1.b", (4, 0))) == (12345, (4, 0), "model.a-1.b")
    assert read_own("model.own.rank-00001.a") is None


def test_replicas_of_a_sharded_tensor_that_differ_are_restored_to_each_in_the_saved_world_only() -> None:
    """Ranks 0 and 1 hold the halves, and so do 2 and 3, which hold another second half."""
    shape, low, high = (4, 2), Box((0, 0), (2, 2)), Box((2, 0), (2, 2))
    whole = StoredTensor(
        "float32", shape, (*tensor("zero", low, shape).chunks, *tensor("one", high, shape).chunks)
    )
    own = own_name(3, "model.w", (2, 0))
    entries: dict[str, Stored] = {"model.w": whole, own: tensor("three", Box((0, 0), (2, 2)), (2, 2))}
    found = checkpoint(entries, 4)
    assert [file for file, _ in found.seen_by(1, 4).tensor_strips("model.w", high)] == ["one"]
    assert [file for file, _ in found.seen_by(3, 4).tensor_strips("model.w", high)] == ["three"]
    assert [file for file, _ in found.seen_by(3, 4).tensor_strips("model.w", low)] == ["zero"]
    assert [file for file, _ in found.seen_by(3, 8).tensor_strips("model.w", high)] == ["one"]
    assert found.seen_by(3, 4).names() == ["model.w"]
    assert found.names() == ["model.w", own]


def test_in_a_larger_world_ranks_follow_the_saved_ones_in_turn() -> None:
    box = Box((0,), (2,))
    entries: dict[str, Stored] = {"a": tensor("zero", box, (2,)), "scheduler": StoredObject("zero", 0, 9)}
    entries |= {
        own_name(1, "a", ()): tensor("one", box, (2,)),
        own_name(1, "scheduler", ()): StoredObject("one", 0, 9),
    }
    found = checkpoint(entries, 2)
    for rank, file in enumerate(("zero", "one", "zero", "one")):
        seen = found.seen_by(rank, 4)
        assert [each for each, _ in seen.tensor_strips("a", box)] == [file]
        assert [each for each, _ in seen.object_strips("scheduler")] == [file]
        assert seen.apart == {"a", "scheduler"}
