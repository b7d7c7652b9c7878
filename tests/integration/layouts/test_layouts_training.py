from pathlib import Path

import pytest
import torch
from layouts_training import Leg, Whole, train, train_unsharded
from layouts_troupe import Troupe

STEPS = 2
CHAIN = (
    ("fsdp 4", 4),
    ("tp 2x2", 4),  # rows and columns of the same tensor over two dimensions of the mesh
    ("hsdp 2x2", 4),
    ("pp 2x2", 4),  # stages, each sharded
    ("ddp 2", 2),
    ("pp 2", 2),
    ("pp 2x2", 4),
    ("tp 2x2x2", 8),  # replicas, shards, tensors
    ("fsdp 3", 3),
    ("plain 1", 1),
)


def go_on(troupe: Troupe, legs: list[tuple[Leg, int]]) -> Whole:
    """Each leg begins bit by bit where the one before ended; what the last one ended with."""
    ended: dict[str, torch.Tensor] = {}
    for leg, ranks in legs:
        wholes: list[Whole] = troupe.play(train, leg, ranks=ranks)
        for whole in wholes:
            begun = whole.restored
            unequal = [name for name in ended if not torch.equal(begun[name], ended[name])]
            assert not unequal, f"restored under {leg.layout}"
        ended = wholes[0].ended
    return wholes[0]


def test_a_run_that_changes_its_layout_again_and_again_is_the_run_that_never_was_sharded(
    troupe: Troupe, tmp_path: Path
) -> None:
    legs = [
        (Leg(tmp_path, layout, STEPS * number), ranks) for number, (layout, ranks) in enumerate(CHAIN, start=1)
    ]
    last = go_on(troupe, legs)
    expected = train_unsharded(STEPS * len(CHAIN), is_mixed=False)
    for name, parameter in expected.items():
        torch.testing.assert_close(last.ended[name], parameter, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("second", [("fsdp 2", 2), ("hsdp 2x2", 4)], ids=str)
def test_mixed_precision_goes_on_in_another_layout_with_its_full_precision(
    second: tuple[str, int], troupe: Troupe, tmp_path: Path
) -> None:
    layout, ranks = second
    legs = [Leg(tmp_path, "fsdp 4", 3, is_mixed=True), Leg(tmp_path, layout, 6, is_mixed=True)]
    last = go_on(troupe, list(zip(legs, (4, ranks), strict=True)))
    for name, parameter in train_unsharded(6, is_mixed=True).items():
        assert last.ended[name].dtype is torch.float32
        torch.testing.assert_close(last.ended[name], parameter, rtol=1e-4, atol=1e-5)
