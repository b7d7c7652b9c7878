"""What ranks say of their parameter groups, and whose settings a group has back."""

from typing import Any

import pytest
import torch

from holdfast.api.errors import InvalidInput
from holdfast.checkpoint.capture import groups
from holdfast.checkpoint.capture.shard import Shard
from holdfast.checkpoint.errors import Unfit
from holdfast.checkpoint.format.index import Box
from holdfast.checkpoint.restore.plan import Place, Regrouping
from holdfast.checkpoint.restore.strip import Target

FIRST, SECOND = "optimizer.param_groups.0.params", "optimizer.param_groups.1.params"
RATE, OTHER_RATE = "optimizer.param_groups.0.lr", "optimizer.param_groups.1.lr"
PLACE = ("optimizer", "param_groups", 0, "lr")
OTHER_PLACE = ("optimizer", "param_groups", 1, "lr")


def test_the_groups_of_all_ranks_are_joined_in_the_order_of_the_ranks() -> None:
    said = [{FIRST: ["b", "a"]}, {FIRST: ["b", "a"], SECOND: []}, {FIRST: ["c", "a"], SECOND: ["d"]}]
    assert groups.joined(said) == {FIRST: ["b", "a", "c"], SECOND: ["d"]}


def test_a_parameter_in_one_group_here_and_another_there_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"param_groups\.1\.params: 'a is in this one.*same parameter groups"):
        groups.joined([{FIRST: ["a"]}, {SECOND: ["a"]}])


def test_settings_that_only_some_ranks_have_are_alike() -> None:
    groups.require_alike([{RATE: "0.1"}, {RATE: "0.1", OTHER_RATE: "0.2"}, {OTHER_RATE: "0.2"}])


def test_settings_that_differ_are_refused_with_both_values_and_ranks() -> None:
    with pytest.raises(InvalidInput, match=r"param_groups\.1\.lr: '0\.2 on rank 1, 0\.3 on rank 2'"):
        groups.require_alike([{RATE: "0.1"}, {RATE: "0.1", OTHER_RATE: "0.2"}, {OTHER_RATE: "0.3"}])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (float("nan"), "nan"),
        ((0.9, 0.999), "(0.9, 0.999)"),
        (None, "None"),
        (torch.tensor(0.5), "0.5"),
        (object(), ""),
        ([object()], ""),
    ],
    ids=["number", "NaN", "tuple", "None", "tensor", "object", "list of objects"],
)
def test_values_are_compared_by_a_text_that_does_not_depend_on_the_process(value: object, text: str) -> None:
    assert groups.as_text(value) == text


@pytest.mark.parametrize(
    ("name", "is_list"),
    [(FIRST, True), (f"{groups.PREFIX}10.params", True), (f"{groups.PREFIX}0.inner.params", False), (RATE, False)],
)
def test_a_groups_list_is_told_from_its_settings(name: str, is_list: bool) -> None:
    assert groups.is_list(name) is is_list


def settle(
    members: groups.Members,
    own: dict[str, Place],
    lists: dict[str, object],
    values: dict[str, Any],
    kept: list[str] | None = None,
) -> list[tuple[Place, object]]:
    """`lists` and `values` are what the checkpoint holds; tensors are there, objects are unpacked."""
    packed = {name: Target.of_bytes(1) for name in (*lists, *values)}
    saved = {name: each if isinstance(each, torch.Tensor) else packed[name] for name, each in values.items()}
    made = Regrouping(members=members, own=own, lists={name: packed[name] for name in lists}, saved=saved)
    found = made.settle(lambda name, _: {**lists, **values}[name])
    if kept is not None:
        kept.extend(made.kept)
    return found


RATES = {RATE: 0.1, OTHER_RATE: 0.2}
OWN: dict[str, Place] = {RATE: PLACE, OTHER_RATE: OTHER_PLACE}


def test_a_group_has_the_settings_of_its_parameters_and_not_of_its_number() -> None:
    found = settle({FIRST: ["b"], SECOND: ["a"]}, OWN, {FIRST: ["a", "x"], SECOND: ["y", "b"]}, RATES)
    assert found == [(PLACE, 0.2), (OTHER_PLACE, 0.1)]


@pytest.mark.parametrize("members", [{FIRST: ["c"], SECOND: []}, {}], ids=["saved as nobody's", "not known"])
def test_a_group_of_which_nothing_was_saved_has_the_settings_of_its_number(members: groups.Members) -> None:
    found = settle(members, OWN, {FIRST: ["a"], SECOND: None}, RATES)
    assert found == [(PLACE, 0.1), (OTHER_PLACE, 0.2)]


def test_groups_that_are_alike_can_be_made_one() -> None:
    alike = {RATE: 0.1, OTHER_RATE: 0.1}
    assert settle({FIRST: ["a", "b"]}, {RATE: PLACE}, {FIRST: ["a"], SECOND: ["b"]}, alike) == [(PLACE, 0.1)]


def test_groups_that_differ_cannot_be_made_one() -> None:
    with pytest.raises(Unfit, match=r"groups\.0\.lr is 0\.1 and .*groups\.1\.lr is 0\.2; give the optimizer"):
        settle({FIRST: ["a", "b"]}, {RATE: PLACE}, {FIRST: ["a"], SECOND: ["b"]}, RATES)


def test_a_setting_that_one_of_the_parameters_groups_had_not_got_is_named() -> None:
    with pytest.raises(Unfit, match=r"there is no optimizer\.param_groups\.1\.lr"):
        settle({FIRST: ["a", "b"]}, {RATE: PLACE}, {FIRST: ["a"], SECOND: ["b"]}, {RATE: 0.1})


def test_a_setting_that_nobody_saved_is_kept_and_one_that_the_group_has_not_got_comes_back() -> None:
    began, kept = f"{groups.PREFIX}0.initial_lr", list[str]()
    found = settle({FIRST: ["a"]}, {RATE: PLACE}, {FIRST: ["a"]}, {began: 0.3}, kept)
    assert found == [(("optimizer", "param_groups", 0, "initial_lr"), 0.3)]
    assert kept == [RATE]


def test_settings_of_another_optimizer_are_refused() -> None:
    with pytest.raises(Unfit, match=r"not saved \(lr\), .* others \(momentum\): it was another optimizer"):
        settle({FIRST: ["a"]}, {RATE: PLACE}, {FIRST: ["a"]}, {f"{groups.PREFIX}0.momentum": 0.9})


def test_tensors_are_settings_as_well_and_no_number_takes_their_place() -> None:
    live = Shard(local=torch.tensor(1.0), shape=(), box=Box((), ()))
    saved = torch.tensor(0.5)
    members, lists = {FIRST: ["b"]}, {FIRST: ["a"], SECOND: ["b"]}
    ((place, value),) = settle(members, {RATE: live}, lists, {RATE: torch.tensor(2.0), OTHER_RATE: saved})
    assert (place, value) == (live, saved)
    with pytest.raises(Unfit, match=r"another kind of value, 0\.2"):
        settle(members, {RATE: live}, lists, RATES)
