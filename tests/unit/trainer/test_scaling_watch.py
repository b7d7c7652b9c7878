"""Scales of FP8 by layer and over time, and the loss scale."""

import math

import pytest
import torch

from holdfast.api.errors import InvalidInput
from holdfast.trainer.probes import LossScaleWatch, ScalingWatch, Soundness
from holdfast.trainer.probes.scaling import PENDING_MAX, REMEMBERED, SETTLING

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def watched(*amaxes: float, scale: float = 1.0, format: torch.dtype = E4M3) -> ScalingWatch:
    watch = ScalingWatch()
    for each in amaxes:
        watch.update("mlp", each, scale, format)
    return watch


def test_values_within_the_format_are_sound_and_the_layer_nearest_to_the_edge_is_shown() -> None:
    watch = watched(*[112.0] * 20)
    watch.update("far", 1.0, 1.0, E4M3)
    (found,) = watch.answers()
    assert (found.verdict, found.figure, found.where) == (Soundness.SOUND, 2.0, "mlp")  # 448 is four times 112


def test_a_layer_beyond_the_format_is_suspect_and_it_says_since_when() -> None:
    watch = watched(*[400.0] * 50, *[500.0] * 2)
    watch.update("quiet", 1.0, 1.0, E4M3)
    (found,) = watch.answers()
    assert (found.verdict, found.where) == (Soundness.SUSPECT, "mlp")
    assert "2 of 52 updates are beyond float8_e4m3fn's largest number, the first was number 51" in found.says
    assert watched(*[500.0] * 2, format=E5M2).answers()[0].verdict is Soundness.SOUND


def test_one_that_overtakes_its_scale_once_in_a_while_is_let_pass() -> None:
    assert watched(*[400.0] * 60, 500.0, *[400.0] * 60).answers()[0].verdict is Soundness.SOUND


def test_values_that_nearly_vanish_are_suspect_until_they_are_scaled() -> None:
    (found,) = watched(*[1e-3] * 20).answers()
    assert found.verdict is Soundness.SUSPECT
    assert "near float8_e4m3fn's smallest" in found.says
    assert watched(*[1e-3] * 20, scale=2.0**17).answers()[0].verdict is Soundness.SOUND
    assert watched(*[1e-3] * 20, format=E5M2).answers()[0].verdict is Soundness.SOUND


def test_a_layer_that_grows_is_suspect_before_it_is_at_the_edge() -> None:
    (found,) = watched(*[2.0 ** (each / 10) for each in range(60)]).answers()
    assert found.verdict is Soundness.SUSPECT
    # 448 is 2**8.81: from 2**5.9 at a doubling in 10 updates it is 29 more.
    assert "grows by a factor of 2 in 10 updates, and reaches float8_e4m3fn's edge in 29" in found.says


@pytest.mark.parametrize(
    "amaxes",
    [
        [2.0 ** (each / 1000) for each in range(60)],
        [64.0 * (2.0 if each % 2 else 1.0) for each in range(60)],
        [2.0 ** (each / 2) for each in range(8)],
        [2.0 ** (6 - each / 20) for each in range(60)],
    ],
    ids=["too slowly to get there", "up and down", "too few updates", "it shrinks"],
)
def test_what_does_not_grow_to_the_edge_is_sound(amaxes: list[float]) -> None:
    assert watched(*amaxes).answers()[0].verdict is Soundness.SOUND


def test_a_value_that_is_not_finite_is_suspect_also_where_there_is_no_other() -> None:
    for bad in (math.nan, math.inf, -1.0):
        (found,) = watched(bad).answers()
        assert (found.verdict, found.figure) == (Soundness.SUSPECT, None)
        assert "not finite" in found.says
    assert watched(1.0, scale=0.0).answers()[0].verdict is Soundness.SUSPECT


def test_tensors_are_copied_when_they_are_told_and_looked_at_together() -> None:
    watch, history = ScalingWatch(), torch.tensor([100.0])
    for _ in range(PENDING_MAX + 1):
        watch.update("mlp", history, torch.tensor(1.0), E4M3)
    history.fill_(1e6)
    assert len(watch._pending) == 1
    (found,) = watch.answers()
    assert found.verdict is Soundness.SOUND
    assert f"{PENDING_MAX + 1} updates" in found.says


def test_nothing_told_and_zeros_alone_are_unknown() -> None:
    assert ScalingWatch().answers()[0].verdict is Soundness.UNKNOWN
    watch = watched(1.0)
    watch.update("unused", 0.0, 1.0, E4M3)
    (found,) = watch.answers()
    assert (found.verdict, found.where) == (Soundness.UNKNOWN, "unused")


def test_a_format_that_is_none_or_changes_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^format: torch.float32 is not accepted; write one of torch.float8"):
        watched(1.0, format=torch.float32)
    watch = watched(1.0)
    with pytest.raises(InvalidInput, match=r"mlp was torch.float8_e4m3fn before"):
        watch.update("mlp", 1.0, 1.0, E5M2)


def scaled(*skips: bool, scale: float = 1024.0) -> LossScaleWatch:
    watch = LossScaleWatch()
    for each in skips:
        watch.update(scale, skipped=each)
    return watch


def test_skips_while_the_scale_comes_down_at_first_do_not_count() -> None:
    (found,) = scaled(*[True] * 20, *[False] * 500).answers()
    assert (found.verdict, found.figure) == (Soundness.SOUND, 0.0)
    assert scaled(*[True] * SETTLING).answers()[0].verdict is Soundness.UNKNOWN
    assert LossScaleWatch().answers()[0].verdict is Soundness.UNKNOWN


def test_one_skip_in_a_thousand_is_sound_and_one_in_fifty_is_not() -> None:
    rare, often = [each % 1000 == 999 for each in range(2000)], [each % 50 == 49 for each in range(2000)]
    assert scaled(*rare).answers()[0].verdict is Soundness.SOUND
    (found,) = scaled(*often).answers()
    assert (found.verdict, found.figure) == (Soundness.SUSPECT, 0.02)
    assert "growth_interval" in found.change
    assert scaled(*often, *[False] * REMEMBERED).answers()[0].verdict is Soundness.SOUND


@pytest.mark.parametrize("scale", [0.5, math.inf])
def test_a_scale_that_is_worn_out_is_suspect_without_a_skip(scale: float) -> None:
    (found,) = scaled(*[False] * 100, scale=scale).answers()
    assert found.verdict is Soundness.SUSPECT
    assert "overflow without any scale" in found.change
