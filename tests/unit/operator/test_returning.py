"""A node that another job took out of service, and what a Return says and does."""

import pytest
from operator_builders import node

from holdfast.api.intervention import (
    InterventionAction,
    InterventionOutcome,
    InterventionRequest,
    InterventionState,
)
from holdfast.operator.decide.intervention import Returning, settle_return
from holdfast.operator.kube.objects import Node

DONE = InterventionOutcome("uid", InterventionState.DONE, "node n5 returned")
REFUSED = InterventionOutcome("uid", InterventionState.REFUSED, "node n5 is not avoided")
PENDING = InterventionOutcome("uid", InterventionState.PENDING, "under way")
THERE = {"research/gpt", "research/other", "vision/vit"}
BY_HAND = "kubectl taint node n5 holdfast.dev/cordoned-; kubectl annotate node n5 holdfast.dev/cordoned-by-"


def settled(
    outcome: InterventionOutcome, there: Node | None, action: InterventionAction = InterventionAction.RETURN
) -> Returning:
    request = InterventionRequest("uid", "research/gpt", action, "repaired", node="n5")
    return settle_return(request, outcome, there, lambda job: job in THERE)


@pytest.mark.parametrize("outcome", [DONE, REFUSED, PENDING])
@pytest.mark.parametrize(
    "there", [None, node("n5"), node("n5", unschedulable=True)], ids=["gone", "free", "foreign"]
)
def test_a_node_that_no_job_took_out_is_the_watchdogs_alone(
    outcome: InterventionOutcome, there: Node | None
) -> None:
    assert settled(outcome, there) == Returning(outcome)


def test_what_the_job_took_out_itself_is_returned_by_its_plan() -> None:
    assert settled(DONE, node("n5", cordoned_by="research/gpt")) == Returning(DONE)


def test_only_a_return_that_was_answered_returns() -> None:
    other = node("n5", cordoned_by="research/gone")
    assert settled(PENDING, other) == Returning(PENDING)
    assert settled(REFUSED, other, InterventionAction.EVICT) == Returning(REFUSED)


@pytest.mark.parametrize("by", ["research/other", "vision/vit", "vision/gone"])
@pytest.mark.parametrize("outcome", [DONE, REFUSED])
def test_a_node_that_another_job_took_out_stays_out_and_the_way_back_is_told(
    outcome: InterventionOutcome, by: str
) -> None:
    returning = settled(outcome, node("n5", cordoned_by=by))
    namespace, _, name = by.partition("/")
    assert returning.of is None
    assert returning.outcome.state is outcome.state
    assert returning.outcome.outcome == (
        f"{outcome.outcome}; it stays out of service: the job {by} took it out; return it there: "
        f"kubectl holdfast return n5 -n {namespace} --job {name}; if it is gone: {BY_HAND}"
    )


@pytest.mark.parametrize("by", ["research/gone", "research/gpt"], ids=["deleted", "deleted and applied again"])
def test_a_job_of_the_namespace_returns_what_one_that_is_gone_took_out(by: str) -> None:
    returning = settled(REFUSED, node("n5", cordoned_by=by))
    assert returning.of == by
    assert returning.outcome.state is InterventionState.DONE
    says = f"node n5 is back in service; the job {by} took it out and is gone"
    assert returning.outcome.outcome == says


def test_a_node_that_the_job_kept_away_from_too_is_returned_in_both_ways() -> None:
    returning = settled(DONE, node("n5", cordoned_by="research/gone"))
    assert returning.of == "research/gone"
    assert returning.outcome.outcome.startswith("node n5 returned; node n5 is back in service; ")
