"""A step takes the same samples in every world, or the sizes that would fit are named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.errors import InvalidInput
from holdfast.integrations.globalbatch import BatchShare, fitting_worlds, share_of


def test_a_world_that_shrinks_takes_more_micro_batches_of_the_same_size() -> None:
    assert share_of(64, world_size=8, micro_batch=8) == BatchShare(8, 1)
    assert share_of(64, world_size=4, micro_batch=8) == BatchShare(8, 2)
    assert share_of(64, world_size=1, micro_batch=8) == BatchShare(8, 8)


def test_a_world_that_grows_beyond_the_first_takes_smaller_micro_batches() -> None:
    assert share_of(64, world_size=16, micro_batch=8) == BatchShare(4, 1)
    assert share_of(48, world_size=3, micro_batch=6) == BatchShare(4, 4)


def test_a_world_that_does_not_divide_it_is_refused_with_the_sizes_that_would_fit() -> None:
    with pytest.raises(InvalidInput) as raised:
        share_of(64, world_size=7, micro_batch=8)
    told = str(raised.value)
    assert "global_batch" in told
    assert "8 or 4 or 2 or 1 ranks" in told
    assert "a global batch of 63 or 70" in told


def test_more_ranks_than_samples_are_refused() -> None:
    with pytest.raises(InvalidInput, match="a global batch of 8"):
        share_of(4, world_size=8, micro_batch=1)


@pytest.mark.parametrize("name", ["global_batch", "world_size", "micro_batch"])
def test_what_is_not_positive_is_named(name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        share_of(**{"global_batch": 8, "world_size": 2, "micro_batch": 2, name: 0})


@given(st.integers(1, 4096), st.integers(1, 64), st.integers(1, 64))
def test_the_global_batch_is_constant_and_no_rank_takes_more_at_once_than_it_may(
    global_batch: int, world_size: int, micro_batch: int
) -> None:
    if world_size not in fitting_worlds(global_batch, up_to=64):
        with pytest.raises(InvalidInput):
            share_of(global_batch, world_size=world_size, micro_batch=micro_batch)
        return
    share = share_of(global_batch, world_size=world_size, micro_batch=micro_batch)
    assert share.global_batch(world_size) == global_batch
    assert 1 <= share.micro_batch <= micro_batch
