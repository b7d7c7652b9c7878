import random
from collections.abc import Iterator

import numpy
import pytest
import torch

from holdfast.checkpoint.capture.randomness import capture, derive_seed, reinstate, reseed, source_rank


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    before = capture()
    yield
    reinstate(before)


def draw() -> list[float]:
    return [random.random(), random.gauss(0, 1), float(numpy.random.rand()), float(torch.rand(()))]


@pytest.mark.parametrize("drawn_before", [0, 1, 2])
def test_a_captured_state_draws_the_same_numbers_again(drawn_before: int) -> None:
    for _ in range(drawn_before):
        draw()
        numpy.random.randn()
    state = capture()
    first = [*draw(), float(numpy.random.randn())]
    draw()
    reinstate(state)
    assert [*draw(), float(numpy.random.randn())] == first


def test_a_rank_of_another_world_follows_the_rank_it_counts_round_to() -> None:
    assert [source_rank(rank, 2) for rank in range(5)] == [0, 1, 0, 1, 0]


def test_derived_seeds_are_reproducible_and_differ_by_rank_world_and_state() -> None:
    random.seed(1)
    one = capture()
    random.seed(2)
    two = capture()
    seeds = [
        derive_seed(state, rank=rank, world_size=world_size)
        for state in (one, two)
        for rank in (0, 2)
        for world_size in (3, 4)
    ]
    assert len(set(seeds)) == 8
    assert derive_seed(one, rank=0, world_size=3) == seeds[0]


def test_a_seed_settles_every_source() -> None:
    reseed(2**64 - 5)
    first = draw()
    reseed(2**64 - 5)
    assert draw() == first
