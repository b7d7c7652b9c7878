"""The print of a batch: what it names, what it does not depend on, and what adds up."""

import itertools
import warnings

import pytest
import torch
from torch import Tensor

from holdfast.trainer.batchprint import BYTES_MAX, BatchSum, OnDevice, print_of


def told(batch: object) -> BatchSum:
    sum_ = print_of(batch)
    assert sum_ is not None
    return sum_


def tokens(samples: int = 8, length: int = 33, seed: int = 0) -> Tensor:
    return torch.randint(0, 50_000, (samples, length), generator=torch.Generator().manual_seed(seed))


KINDS = [
    torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool,
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("length", [1, 2, 7, 32, 33])
def test_the_order_of_samples_does_not_count_and_their_content_does(dtype: torch.dtype, length: int) -> None:
    batch = (tokens(length=length) % 251).to(dtype)
    value = told(batch).value
    assert told(batch.flip(0)).value == value
    assert told(batch.clone()).value == value
    other = batch.clone()
    other[3, -1] = 0 if other[3, -1] else 1
    assert told(other).value != value


def test_the_prints_of_parts_add_up_to_that_of_the_whole_in_any_world() -> None:
    inputs, labels = tokens(24), torch.rand(24, 3, 5)
    whole = told((inputs, labels)).value
    for world in (1, 2, 3, 24):
        parts = [(inputs[rank::world], labels[rank::world]) for rank in range(world)]
        assert sum(told(each).value for each in parts) % 2**64 == whole


def test_what_moves_from_one_sample_to_another_is_seen() -> None:
    batch = tokens(2)
    moved = batch.clone()
    moved[0, 5], moved[1, 5] = batch[1, 5], batch[0, 5]
    assert told(moved).value != told(batch).value


def test_what_belongs_to_a_sample_belongs_to_it_alone() -> None:
    inputs, labels = tokens(4), tokens(4, seed=1)
    values = {
        told(batch).value for batch in ((inputs, labels), (labels, inputs), (inputs, labels.flip(0)), (inputs,))
    }
    assert len(values) == 4


def test_batches_of_few_small_numbers_differ() -> None:
    """Bytes that are nearly all alike, as of a mask or of a tiny data set."""
    batches = [torch.tensor([row, other]) for row, other in itertools.combinations(range(64), 2)]
    rows = [each.reshape(2, 1).to(torch.uint8) for each in batches]
    assert len({told(each).value for each in rows}) == len(rows)


def test_mappings_lists_and_what_is_no_data() -> None:
    inputs = tokens(4)
    assert told({"index": 7, "inputs": inputs, "image": None}) == told([inputs, 0.5]) == told(inputs)
    assert told({"inputs": inputs, "scale": torch.tensor(2.0), "nothing": torch.ones(0, 7)}) == told(inputs)
    assert told(({}, [], [None], inputs)) == told(inputs)
    for nothing in (7, "text", None, [], {}, torch.tensor(3.0), [1, 2], {"pictures": [object()]}):
        assert print_of(nothing) is None


CAUSAL = torch.tril(torch.ones(33, 33))
ENDS = torch.arange(9, dtype=torch.int32)


@pytest.mark.parametrize(
    ("beside", "says"),
    [
        (CAUSAL, "count 4 and 33 samples"),
        (ENDS, "count 4 and 9 samples"),
        (torch.eye(3).to_sparse(), "not dense"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "not dense"),
        ([[1, 2, 3], [4, 5]], "a list of numbers"),
        ([object(), object()], "type object"),
        (["one", "two"], "count 2 and 4 samples"),
        ("one", "type str"),
    ],
    ids=["mask", "cu_seqlens", "sparse", "jagged", "numbers", "objects", "strings", "string"],
)
@pytest.mark.parametrize("is_first", [True, False], ids=["before", "behind"])
def test_where_samples_are_counted_in_two_ways_no_batch_is_the_same_as_another(
    beside: object, says: str, is_first: bool
) -> None:
    """What is left of it may be the same for other samples, and which of them are the data nobody knows."""
    batch = (beside, tokens(4)) if is_first else {"ids": tokens(4), "beside": beside}
    assert told(batch)[:3] == (0, 0, None)
    assert says in told(batch).silent


def test_strings_belong_to_their_samples() -> None:
    label = torch.tensor([0, 1])
    batches = (["a", "b"], label), (["c", "d"], label), (["a", "c"], label), (["a", b"b"], label), label
    assert len({told(each).value for each in batches}) == 4, "bytes are those of the text"
    assert told((["b", "a"], label.flip(0))) == told((["a", "b"], label))
    assert told(["a", "b", "\ud800"]).samples == 3
    long = "x" * BYTES_MAX
    assert told([long + "a"]) != told([long + "b"])


def test_what_is_counted() -> None:
    assert told(tokens(4, 9))[1:] == (4, 36, "")
    assert told(torch.rand(4, 9))[1:] == (4, None, ""), "numbers are no tokens"
    pictures = torch.arange(4 * 192, dtype=torch.int64).reshape(4, 3, 8, 8)
    assert told(pictures)[1:] == (4, None, ""), "nor are pictures"
    assert told(torch.zeros(0, 9, dtype=torch.int64)) == (0, 0, 0, "")
    assert told(torch.zeros(4, 0)) == (0, 0, None, ""), "samples without content name nothing"


def test_a_view_is_as_good_as_a_copy() -> None:
    rows = tokens(8, 34)
    assert told((rows[:, :-1], rows[:, 1:])) == told((rows[:, :-1].clone(), rows[:, 1:].clone()))
    small = rows.to(torch.int16)
    assert told(small[1:, 1:-1]) == told(small[1:, 1:-1].clone())
    assert told(torch.rand(3, 4, requires_grad=True)).samples == 3


def test_of_a_long_sample_the_beginning_and_the_end_are_looked_at() -> None:
    batch = torch.zeros(2, BYTES_MAX + 2, dtype=torch.uint8)
    value = told(batch).value
    for place, is_seen in ((0, True), (BYTES_MAX // 2, False), (BYTES_MAX // 2 + 2, True), (-1, True)):
        changed = batch.clone()
        changed[1, place] = 1
        assert (told(changed).value != value) is is_seen, place


def test_a_batch_on_a_device_is_not_waited_for() -> None:
    with pytest.raises(OnDevice, match="meta"):
        print_of({"inputs": torch.zeros(2, 2, device="meta")})


@pytest.mark.parametrize("samples", [2, 8])
def test_samples_that_are_all_the_same_fill_a_place(samples: int) -> None:
    padding = {"ids": torch.zeros(samples, 9, dtype=torch.int64), "positions": torch.arange(9).repeat(samples, 1)}
    assert told(padding) == (0, 0, None, "all its samples are the same")
    padding["ids"][0, 0] = 7
    assert told(padding).samples == samples
    assert told(padding["ids"][1:2]).samples == 1, "one may be anything"


class Hostile(dict[str, object]):
    """A user's mapping that does not do what one does."""

    def values(self) -> object:  # type: ignore[override]
        raise KeyError("not loaded")


def nested() -> Tensor:
    with warnings.catch_warnings(action="ignore"):  # that it is a prototype
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def endless() -> list[object]:
    batch: list[object] = []
    batch.append(batch)
    return batch


@pytest.mark.parametrize(
    ("beside", "says"),
    [
        (nested(), "not dense"),
        (torch._neg_view(torch.ones(4, 2)), "RuntimeError"),  # type: ignore[no-untyped-call]
        (Hostile(), "KeyError: 'not loaded'"),
        (endless(), "RecursionError"),
    ],
    ids=["nested", "negated", "hostile", "endless"],
)
def test_what_cannot_be_read_stops_nobody(beside: object, says: str) -> None:
    for batch in (beside, [beside, tokens(4)]):
        assert told(batch)[:3] == (0, 0, None)
        assert says in told(batch).silent


def test_a_conjugate_is_read_as_what_it_is() -> None:
    numbers = torch.complex(torch.rand(4, 3), torch.rand(4, 3))
    assert told(numbers.conj()) == told(numbers.conj().resolve_conj()) != told(numbers)


def test_a_print_is_the_same_in_every_version() -> None:
    """It is compared over restarts, which may update the trainer."""
    assert told(torch.arange(12).reshape(3, 4)).value == 11283408443727665191
