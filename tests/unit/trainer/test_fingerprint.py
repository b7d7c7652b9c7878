"""The fingerprint sees every change of the bits, on whatever layout, and nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from holdfast.trainer.fingerprint import COLUMNS, ROWS, fingerprint, words_of

TABLE = ROWS * COLUMNS[0]
# Every length of a last, partial word; less than a table, some tables, and enough for a second fold.
SIZES = [1, 7, 8, 9, 1000, TABLE - 1, TABLE, 3 * TABLE + 5]
MANY = 17 * TABLE + 11
TYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.bool,
]


def of(tensor: Tensor) -> int:
    return fingerprint({"weight": tensor})


def words(count: int, seed: int = 0) -> Tensor:
    drawn = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=drawn)


MANY_WORDS = words(MANY)
MANY_OF = of(MANY_WORDS)


def of_changed(*changes: tuple[int, int]) -> int:
    """The fingerprint of the many words with some bits (second) of some words (first) flipped."""
    try:
        for word, bits in changes:
            MANY_WORDS[word] ^= bits if bits < 2**63 else bits - 2**64
        return of(MANY_WORDS)
    finally:
        for word, bits in changes:
            MANY_WORDS[word] ^= bits if bits < 2**63 else bits - 2**64


@given(st.integers(0, MANY - 1), st.integers(1, 2**64 - 1))
@settings(max_examples=8)
def test_any_change_of_one_word_is_seen(word: int, bits: int) -> None:
    assert of_changed((word, bits)) != MANY_OF


@given(st.integers(0, MANY - 1), st.integers(0, MANY - 1), st.sampled_from([1, 2**31, 2**62, 2**63]))
@settings(max_examples=12)
def test_one_bit_flipped_in_each_of_two_words_is_seen(one: int, other: int, bit: int) -> None:
    if one != other:
        assert of_changed((one, bit), (other, bit)) != MANY_OF


@given(st.integers(0, MANY - 1), st.integers(0, MANY - 1))
@settings(max_examples=8)
def test_two_words_swapped_are_seen(one: int, other: int) -> None:
    difference = (int(MANY_WORDS[one]) ^ int(MANY_WORDS[other])) % 2**64
    if one != other:
        assert of_changed((one, difference), (other, difference)) != MANY_OF


@pytest.mark.parametrize("distance", [1, ROWS, COLUMNS[0], COLUMNS[0] + ROWS, COLUMNS[1], TABLE])
@pytest.mark.parametrize("bit", [0, 63])
def test_changes_that_stand_in_line_are_seen(distance: int, bit: int) -> None:
    for first in range(0, 3 * COLUMNS[0], 7919):
        assert of_changed((first, 1 << bit), (first + distance, 1 << bit)) != MANY_OF


@pytest.mark.parametrize("size", [4, 4 * TABLE, 4 * TABLE + 7])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_a_change_of_every_sign_is_seen(size: int, kind: torch.dtype) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(kind)
    assert of(values) != of(-values)


@pytest.mark.parametrize("size", [2, 5, TABLE, 2 * TABLE + 3])
def test_the_bits_count_and_not_the_numbers(size: int) -> None:
    zeros = torch.zeros(size)
    negative = zeros.clone()
    negative[-1] = -0.0
    tiny = zeros.clone()
    tiny[-1] = 1e-45
    quiet = torch.full((size,), float("nan"))
    payload = quiet.clone()
    payload.view(torch.int32)[0] ^= 1
    seen = [of(values) for values in (zeros, negative, tiny, quiet, payload)]
    assert len(set(seen)) == 5
    assert of(quiet.clone()) == of(quiet)


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("size", SIZES[:6])
def test_every_type_and_size_is_seen_to_its_last_element(size: int, kind: torch.dtype) -> None:
    octets = torch.arange(size * kind.itemsize, dtype=torch.int64).to(torch.uint8)
    if kind is torch.bool:
        octets %= 2
    changed = octets.clone()
    changed[-kind.itemsize] ^= 1
    values = octets.view(kind)
    assert of(values.clone()) == of(values)
    assert of(changed.view(kind)) != of(values)


@pytest.mark.parametrize("size", SIZES)
def test_where_a_tensor_lies_in_memory_does_not_matter(size: int) -> None:
    values = torch.arange(2 * size, dtype=torch.int32).view(size, 2)
    column = values[:, 1]
    assert of(column) == of(column.clone())
    shifted = torch.empty(size + 1, dtype=torch.int32)[1:].copy_(column)
    assert of(shifted) == of(column.clone())


def test_the_number_of_threads_does_not_matter() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1 if before > 1 else 2)
        assert of(MANY_WORDS) == MANY_OF
    finally:
        torch.set_num_threads(before)


def test_it_is_the_same_in_every_process_and_version() -> None:
    tensors = {"a": torch.arange(MANY), "b": torch.arange(5, dtype=torch.uint8), "c": torch.tensor(1.5)}
    assert fingerprint(tensors) == 3540006230996836144


def test_names_shapes_and_order_count() -> None:
    one, other = torch.ones(6), torch.zeros(6)
    variants = [
        {"a": one, "b": other},
        {"a": other, "b": one},
        {"b": one, "a": other},
        {"a": one, "c": other},
        {"a": one},
        {"a": one.view(2, 3), "b": other},
        {"a": one, "b": other.view(torch.int32)},
        {"a": one, "b": torch.zeros(7)},
        {"a": one, "b": other, "c": torch.empty(0)},
    ]
    assert len({fingerprint(variant) for variant in variants}) == len(variants)


def test_two_large_tensors_that_change_places_are_seen() -> None:
    one, other = words(TABLE, 1), words(TABLE, 2)
    assert fingerprint({"a": one, "b": other}) != fingerprint({"a": other, "b": one})


def test_nothing_at_all_has_a_fingerprint_too() -> None:
    assert 0 <= fingerprint({}) < 2**64
    assert fingerprint({}) != fingerprint({"a": torch.empty(0)}) != fingerprint({"a": torch.tensor(0.0)})


def test_words_are_a_view_where_memory_allows() -> None:
    values = torch.zeros(4)
    assert words_of(values).data_ptr() == values.data_ptr()
    assert words_of(torch.zeros(3)).tolist() == [0, 0]
