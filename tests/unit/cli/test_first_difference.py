"""Two traces of the same steps: the first thing that differs, and what it means."""

import pytest

from holdfast.api.rehearsal import Kind, Look, Seen
from holdfast.cli.bisect.difference import Stage, are_drawn_from, earliest, first_difference, with_operation


def a_step(step: int = 5, **changed: str) -> list[Seen]:
    """One step of a model of two layers, `first` and `second`; `changed` is what another run gives, by place."""

    def said(place: str) -> str:
        return changed.get(place, f"{place}-{step}")

    return [
        Seen(step, Kind.RANDOM, "", gave=said("random")),
        Seen(step, Kind.ENTER, "", took=said("batch")),
        Seen(step, Kind.ENTER, "first", took=said("batch")),
        Seen(step, Kind.LEAVE, "first", took=said("batch"), gave=said("first")),
        Seen(step, Kind.ENTER, "second", took=said("between")),
        Seen(step, Kind.LEAVE, "second", took=said("between"), gave=said("second")),
        Seen(step, Kind.LEAVE, "", took=said("batch"), gave=said("logits")),
        Seen(step, Kind.OUTPUT_GRADIENT, "", gave=said("loss-gradient")),
        Seen(step, Kind.OUTPUT_GRADIENT, "first", gave=said("backward")),
        Seen(step, Kind.GRADIENT, "first.weight", gave=said("gradient")),
        Seen(step, Kind.GRADIENT, "second.weight", gave=said("gradient-2")),
        Seen(step, Kind.LOSS, "", gave=said("loss")),
        Seen(step, Kind.PARAMETER, "first.weight", gave=said("parameter")),
        Seen(step, Kind.PARAMETER, "second.weight", gave=said("parameter-2")),
        Seen(step, Kind.GROUP, "first", gave=said("group")),
    ]


@pytest.mark.parametrize(
    ("place", "stage", "module"),
    [
        ("random", Stage.RANDOM, None),
        ("batch", Stage.DATA, None),
        ("first", Stage.FORWARD, "first"),
        ("between", Stage.FORWARD, ""),
        ("second", Stage.FORWARD, "second"),
        ("logits", Stage.FORWARD, ""),
        ("loss-gradient", Stage.LOSS, None),
        ("backward", Stage.BACKWARD, "first"),
        ("gradient", Stage.GRADIENT, "first"),
        ("gradient-2", Stage.GRADIENT, "second"),
        ("loss", Stage.REPORT, None),
        ("parameter", Stage.UPDATE, "first"),
    ],
)
def test_what_differs_first_says_where_it_was_computed(place: str, stage: Stage, module: str | None) -> None:
    ours = [*a_step(4), *a_step(5), *a_step(6)]
    theirs = [*a_step(4), *a_step(5, **{place: "other"}), *a_step(6, first="other")]
    found = first_difference(ours, theirs, rank=3)
    assert found is not None
    assert (found.step, found.rank, found.stage, found.module) == (5, 3, stage, module)


def test_generators_that_neither_run_draws_from_are_passed_over() -> None:
    ours = [*a_step(5, random="mine"), *a_step(6, random="mine")]
    theirs = [*a_step(5, random="theirs"), *a_step(6, random="theirs", first="other")]
    assert not are_drawn_from(ours)
    assert not are_drawn_from(theirs)
    found = first_difference(ours, theirs, drawn=False)
    assert found is not None
    assert (found.step, found.stage) == (6, Stage.FORWARD)
    assert first_difference(ours[:15], theirs[:15], drawn=False) is None
    assert are_drawn_from([*a_step(5), *a_step(6)])


def test_of_many_parameters_no_module_is_blamed_and_all_are_counted() -> None:
    found = first_difference(a_step(), a_step(parameter="other", **{"parameter-2": "other"}))
    assert found is not None
    assert (found.module, found.names, found.count) == (None, ("first.weight", "second.weight"), 2)


def test_the_same_steps_have_no_difference_and_groups_are_no_matter_of_theirs() -> None:
    assert first_difference(a_step(), a_step()) is None
    assert first_difference(a_step(), a_step(group="other")) is None


def test_what_one_of_them_could_not_read_is_neither_equal_nor_different() -> None:
    assert first_difference(a_step(first="?"), a_step()) is None


def test_a_module_that_one_of_them_does_not_call_is_named_within_what_calls_it() -> None:
    theirs = [each for each in a_step() if each.name != "second"]
    found = first_difference(a_step(), theirs)
    assert found is not None
    assert (found.stage, found.module) == (Stage.FORWARD, "")
    assert "A calls module second where B returns from the model" in found.says


def test_a_run_that_stops_earlier_is_told_as_such() -> None:
    found = first_difference([*a_step(4), *a_step(5)], a_step(4))
    assert found is not None
    assert (found.step, found.stage) == (5, Stage.ENDED)


def test_only_what_a_forward_pass_computed_can_be_looked_at_closer() -> None:
    forward, loss = (first_difference(a_step(), a_step(**{place: "x"})) for place in ("first", "loss"))
    assert forward is not None
    assert loss is not None
    assert (forward.look, loss.look) == (Look(5, "first", 0), None)


def operation(name: str, took: str, gave: str, says: str = "") -> Seen:
    return Seen(5, Kind.OPERATION, name, took=took, gave=gave, says=says)


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        ([operation("mm", "1", "2"), operation("gelu", "2", "x")], "gelu"),
        ([operation("mm", "1", "2"), operation("relu", "2", "x")], "gelu in A, relu in B"),
        ([operation("mm", "1", "2"), operation("gelu", "2", "x", "'tanh'")], "gelu in A, gelu('tanh') in B"),
        ([operation("mm", "1", "2")], "gelu, in A alone"),
        ([operation("mm", "other", "2")], None),  # nobody saw what made it
        ([operation("mm", "1", "2"), operation("gelu", "2", "3")], None),
    ],
)
def test_the_operation_is_named_where_it_can_be_told(theirs: list[Seen], named: str | None) -> None:
    found = first_difference(a_step(), a_step(first="x"))
    assert found is not None
    ours = [operation("mm", "1", "2"), operation("gelu", "2", "3")]
    assert with_operation(found, ours, theirs).operation == named


def test_of_the_ranks_the_earliest_step_counts_and_in_it_the_earliest_stage() -> None:
    late = first_difference([*a_step(4), *a_step(5)], [*a_step(4), *a_step(5, batch="x")], rank=0)
    update = first_difference(a_step(4), a_step(4, parameter="x"), rank=1)
    forward = first_difference(a_step(4), a_step(4, second="x"), rank=2)
    assert earliest([late, None, update, forward]) == forward
    assert earliest([None]) is None
