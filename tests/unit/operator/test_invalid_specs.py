import msgspec
import pytest
from invalid_specs import (
    AT_APPLY,
    BASE,
    BY_DRY_RUN,
    IN_A_CLUSTER,
    INVALID_SPECS,
    LATER_IN_A_CLUSTER,
    LATER_READING,
    READING,
    Invalid,
    ToldBy,
)
from operator_builders import NOW, OPTIONS, job_object, observed, spec_of

from holdfast.api.errors import InvalidSpec
from holdfast.api.trainingjob import read_trainingjob
from holdfast.operator.decide.action import CreatePod, DeletePod, Submit
from holdfast.operator.decide.podbuilder import blueprint
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.decide.template import check_template


def named(given: Invalid) -> str:
    return given.name


TABLE = (*INVALID_SPECS, *BY_DRY_RUN)


def test_the_table_is_long_and_its_names_are_unique() -> None:
    assert len(TABLE) >= 70 + 49
    assert len({each.name for each in TABLE}) == len(TABLE)


def test_everybody_who_tells_has_an_example() -> None:
    assert {each.told_by for each in TABLE} == set(ToldBy)


def test_whatever_is_not_told_when_it_is_applied_has_its_reason() -> None:
    assert [each.name for each in TABLE if bool(each.why) == (each.told_by in AT_APPLY)] == []


def test_the_job_they_all_differ_from_is_valid() -> None:
    job = read_trainingjob(Invalid("", "{}", "").document())
    assert check_template(job) == ()
    assert "entrypoint: [train.py]" in BASE


@pytest.mark.parametrize("given", [*READING, *LATER_READING], ids=named)
def test_a_spec_that_cannot_be_read_names_field_value_and_fix(given: Invalid) -> None:
    with pytest.raises(InvalidSpec) as refused:
        read_trainingjob(given.document())
    assert given.says in [str(problem) for problem in refused.value.problems]


@pytest.mark.parametrize("given", [*IN_A_CLUSTER, *LATER_IN_A_CLUSTER], ids=named)
def test_a_template_that_cannot_be_used_names_field_value_and_fix(given: Invalid) -> None:
    job = read_trainingjob(given.document())
    assert given.says in [str(problem) for problem in check_template(job)]
    with pytest.raises(InvalidSpec, match="is not accepted"):
        blueprint(job, OPTIONS)


@pytest.mark.parametrize("given", INVALID_SPECS, ids=named)
def test_a_refused_spec_stops_nothing_and_says_why(given: Invalid) -> None:
    seen = msgspec.structs.replace(observed(), spec=spec_of(given.document()), job=job_object(generation=2))
    outcome = reconcile(seen, OPTIONS, NOW)
    assert [each for each in outcome.actions if isinstance(each, CreatePod | DeletePod | Submit)] == []
    assert outcome.status is not None
    condition = next(each for each in outcome.status["conditions"] if each["type"] == "InvalidSpec")
    assert (condition["status"], condition["reason"]) == ("True", "SpecRefused")
    assert given.says in condition["message"]
    assert outcome.status["observedGeneration"] == 2
    assert [event for event in outcome.events if event.reason == "InvalidSpec" and given.says in event.message]
