"""A router's load and what it drops."""

import pytest
import torch

from holdfast.api.errors import InvalidInput
from holdfast.trainer.probes import RoutingWatch, Soundness


def routed(counts: list[int], dropped: int = 0, updates: int = 10) -> RoutingWatch:
    watch = RoutingWatch()
    for _ in range(updates):
        watch.update("moe", torch.tensor(counts), torch.tensor(dropped))
    return watch


def test_an_even_load_is_sound_and_the_least_even_layer_is_shown() -> None:
    watch = routed([10, 10, 10, 14])
    watch.update("even", [10, 10], dropped=0)
    (found,) = watch.answers()
    assert (found.verdict, found.where) == (Soundness.SOUND, "moe")
    assert found.figure == pytest.approx(14 / 11 - 1)


@pytest.mark.parametrize(
    ("counts", "dropped", "change"),
    [
        ([40, 5, 5, 5], 0, "the busiest one is waited for"),
        ([20, 20, 20, 0], 0, "a dead expert learns nothing"),
        ([10, 10, 10, 10], 1, "raise the capacity"),
    ],
    ids=["one is too busy", "one gets nothing", "tokens are dropped"],
)
def test_what_is_uneven_dead_or_dropped_is_suspect(counts: list[int], dropped: int, change: str) -> None:
    watch = routed(counts, dropped)
    watch.update("even", [10, 10])
    (found,) = watch.answers()
    assert (found.verdict, found.where) == (Soundness.SUSPECT, "moe")
    assert change in found.change


def test_sums_over_steps_are_judged_and_not_single_ones() -> None:
    watch = RoutingWatch()
    for step in range(8):
        watch.update("moe", [40 if expert == step % 4 else 5 for expert in range(4)], dropped=0)
    (found,) = watch.answers()
    assert (found.verdict, found.figure) == (Soundness.SOUND, 0.0)
    assert watch.loads()["moe"].counts == (110.0,) * 4


def test_an_expert_without_a_token_is_not_dead_where_there_are_few_tokens() -> None:
    assert routed([1, 1, 1, 0], updates=1).answers()[0].verdict is Soundness.SOUND


def test_no_token_is_unknown_and_all_dropped_is_suspect() -> None:
    assert RoutingWatch().answers()[0].verdict is Soundness.UNKNOWN
    assert routed([0, 0]).answers()[0].verdict is Soundness.UNKNOWN
    assert routed([0, 0], dropped=5).answers()[0].verdict is Soundness.SUSPECT


def test_counts_of_another_shape_are_refused() -> None:
    watch = routed([1, 2])
    with pytest.raises(InvalidInput, match=r"^counts: \(3,\) is not accepted; moe has 2 experts"):
        watch.update("moe", [1, 2, 3])
    for counts in (torch.zeros(2, 2), []):
        with pytest.raises(InvalidInput, match="give one number for each expert"):
            watch.update("other", counts)
