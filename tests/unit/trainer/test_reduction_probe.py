"""What a sum over the ranks loses in 16 bits."""

import pytest
import torch
from probed_models import Model, one_thread, seeded, trainable
from torch import Tensor

from holdfast.api.errors import InvalidInput
from holdfast.trainer.probes import Soundness, reduction, reduction_of
from holdfast.trainer.probes.reduction import measured, ring, tree

__all__ = ["one_thread"]

BF16, FP16 = torch.bfloat16, torch.float16


def noise(ranks: int, elements: int = 64, *, seed: int = 1) -> Tensor:
    return torch.randn(ranks, elements, generator=torch.Generator().manual_seed(seed))


def test_a_ring_of_ones_in_bfloat16_stops_at_256_and_a_tree_does_not() -> None:
    ones = torch.ones(1024, 4)
    total, lost = ring(ones, BF16)
    assert (total.tolist(), lost.tolist()) == ([256.0] * 4, [1024 - 256] * 4)
    total, lost = tree(ones, BF16)
    assert (total.tolist(), lost.tolist()) == ([1024.0] * 4, [0] * 4)
    found = measured(ones, BF16, "ring")
    assert (found.bias, found.error, found.swamped, found.overflowed) == (-0.75, 0.75, 768 / 1024, 0.0)


@pytest.mark.parametrize("algorithm", [ring, tree])
@pytest.mark.parametrize("ranks", [2, 3, 7, 8])
def test_each_rank_is_added_once_whatever_the_number_of_ranks(algorithm: type, ranks: int) -> None:
    addends = torch.arange(ranks * 5, dtype=torch.float32).reshape(ranks, 5)
    total, lost = algorithm(addends, torch.float64)
    assert total.tolist() == addends.sum(0).tolist()
    assert lost.sum() == 0


def test_each_chunk_of_a_ring_begins_at_another_rank() -> None:
    # The ones that come after 256 are swamped, but for one that makes 259 of 258: a tie goes to 260.
    addends = torch.ones(4, 4)
    addends[0] = 256.0
    assert ring(addends, BF16)[1].tolist() == [3, 0, 0, 2]


def test_what_is_too_small_for_the_format_or_too_large_is_told() -> None:
    assert measured(torch.full((2, 3), 1e-9), FP16, "ring").swamped == 1.0
    assert measured(torch.full((2, 3), 1e-9), FP16, "tree").swamped == 1.0
    (first, _) = reduction({"w": torch.full((2, 3), 6e4)}, world_size=2, dtype=FP16)
    assert first.verdict is Soundness.SUSPECT
    assert "100.00% of the sums overflowed" in first.says
    assert "divide by the world size before the sum" in first.change


def test_ranks_that_agree_are_biased_in_a_ring_and_the_parameter_is_named() -> None:
    agreed = 1.0 + 0.1 * noise(512)
    in_ring, in_tree = reduction({"quiet": noise(512), "agreed": agreed}, world_size=512, dtype=BF16)
    assert (in_ring.verdict, in_ring.where) == (Soundness.SUSPECT, "agreed")
    assert in_ring.figure is not None
    assert in_ring.figure < -0.01
    assert "reduce in float32" in in_ring.change
    assert in_tree.verdict is Soundness.SOUND


@pytest.mark.parametrize(("ranks", "dtype"), [(8, BF16), (512, FP16), (512, torch.float32)], ids=str)
def test_independent_gradients_and_wide_sums_are_sound(ranks: int, dtype: torch.dtype) -> None:
    found = reduction({"w": noise(ranks)}, world_size=ranks, dtype=dtype)
    assert [each.verdict for each in found] == [Soundness.SOUND, Soundness.SOUND]


def test_few_elements_have_an_error_and_no_bias() -> None:
    few = noise(512, 8)
    assert measured(few, BF16, "ring").error > 0.01
    assert reduction({"w": few}, world_size=512, dtype=BF16)[0].verdict is Soundness.SOUND


def test_in_float32_a_sum_that_overflows_asks_for_no_wider_format() -> None:
    (found, _) = reduction({"w": torch.full((2, 4), 3e38)}, world_size=2, dtype=torch.float32)
    assert found.verdict is Soundness.SUSPECT


def test_made_up_gradients_say_that_they_are() -> None:
    found = reduction(None, world_size=16)
    assert [each.verdict for each in found] == [Soundness.SOUND] * 2
    assert "a ring of 16 ranks in bfloat16, made-up gradients" in found[0].says


def test_the_gradients_of_a_model_are_taken_sample_by_sample_and_the_world_made_of_them() -> None:
    model = seeded(Model)
    found = reduction_of(trainable(model, world_size=512, reduce_dtype=BF16))
    assert [each.verdict for each in found] == [Soundness.SUSPECT, Soundness.SOUND]
    assert found[0].where in dict(model.named_parameters())
    assert [each.verdict for each in reduction_of(trainable(model, world_size=8))] == [Soundness.SOUND] * 2
    assert all(each.grad is None for each in model.parameters())


def test_without_what_it_needs_it_is_unknown() -> None:
    model = seeded(Model)
    (no_world,), (no_loss,) = (
        reduction_of(trainable(model)),
        reduction_of(trainable(model, world_size=8, loss=None)),
    )
    (zero,) = reduction({"w": torch.zeros(2, 3)}, world_size=2)
    (broken,) = reduction({"w": torch.full((2, 3), torch.nan)}, world_size=2)
    assert {each.verdict for each in (no_world, no_loss, zero, broken)} == {Soundness.UNKNOWN}
    assert [each.says for each in (no_world, no_loss)] == ["no world size is given", "no loss is given"]
    assert [each.says for each in (zero, broken)] == ["every gradient is 0", "a gradient is not finite"]


def test_a_world_of_one_and_gradients_without_ranks_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^world_size: 1 is not accepted; write 2 or more"):
        reduction(None, world_size=1)
    with pytest.raises(InvalidInput, match=r"^w: \(\) is not accepted; stack the gradients"):
        reduction({"w": torch.tensor(1.0)}, world_size=2)
