import pytest
from operator_builders import NOW, OPTIONS, actions_of, document, node, nodes, observed, order, plan, spec_of

from holdfast.api.cordon import CORDONED_BY, read_cordoned_by
from holdfast.operator.decide.action import Cordon, Uncordon
from holdfast.operator.decide.observed import Cordoning, Observed, Options, Outcome
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.kube.objects import Node

FAULTY = plan(avoid=(order("n5"),), cordon=(order("n5"),))
CONSUME = Options("w:1", "image", cordoning=Cordoning.CONSUME)


def decide(seen: Observed, options: Options = OPTIONS) -> Outcome:
    return reconcile(seen, options, NOW)


def test_a_node_that_the_plan_cordons_is_taken_out_of_service_once() -> None:
    outcome = decide(observed(plan=FAULTY))
    assert actions_of(outcome, Cordon) == [Cordon("n5", "XID 79", "incident-1")]
    assert ("NodeCordoned", "n5: XID 79 (incident-1)") in [(each.reason, each.message) for each in outcome.events]
    done = {**nodes(), "n5": node("n5", cordoned_by="research/gpt")}
    assert actions_of(decide(observed(plan=FAULTY, nodes=done)), Cordon) == []


def test_a_node_that_is_cordoned_on_request_has_no_incident() -> None:
    asked = plan(cordon=(order("n5", "asked for", None),))
    outcome = decide(observed(plan=asked))
    assert actions_of(outcome, Cordon) == [Cordon("n5", "asked for", "")]
    assert "n5: asked for" in [each.message for each in outcome.events]


def test_an_avoided_node_alone_is_not_taken_out_of_service() -> None:
    assert actions_of(decide(observed(plan=plan(avoid=(order("n5"),)))), Cordon) == []


def test_a_node_that_is_gone_needs_no_cordon_and_no_return() -> None:
    outcome = decide(observed(plan=plan(cordon=(order("n99"),), returned=("n98",))))
    assert actions_of(outcome, Cordon) == []
    assert actions_of(outcome, Uncordon) == []


def test_nodes_are_left_to_another_remediator() -> None:
    done = {**nodes(), "n6": node("n6", cordoned_by="research/gpt")}
    wanted = plan(cordon=(order("n5"),), returned=("n6",))
    assert actions_of(decide(observed(plan=wanted, nodes=done), CONSUME), Cordon | Uncordon) == []  # type: ignore[arg-type]


def annotated(text: str) -> Node:
    made = node("n5", cordoned_by="research/gpt")
    made.metadata.annotations[CORDONED_BY] = text
    return made


@pytest.mark.parametrize(
    ("there", "touched"),
    [
        (node("n5", cordoned_by="research/gpt"), True),
        (node("n5", cordoned_by="research/other"), False),
        (node("n5", cordoned_by="other/gpt"), False),
        (node("n5", unschedulable=True), False),
        (node("n5"), False),
        (annotated("{not json"), False),
        (annotated("[]"), False),
    ],
    ids=["ours", "another job's", "another namespace's", "a person's", "nobody's", "damaged", "of another shape"],
)
def test_only_what_this_job_cordoned_is_returned(there: Node, touched: bool) -> None:
    outcome = decide(observed(plan=plan(returned=("n5",)), nodes={**nodes(), "n5": there}))
    assert actions_of(outcome, Uncordon) == ([Uncordon("n5")] if touched else [])
    assert ("NodeReturned" in [each.reason for each in outcome.events]) is touched


def test_a_node_to_be_cordoned_is_not_returned() -> None:
    both = plan(cordon=(order("n5"),), returned=("n5",))
    done = {**nodes(), "n5": node("n5", cordoned_by="research/gpt")}
    assert actions_of(decide(observed(plan=both, nodes=done)), Uncordon) == []


def test_a_faulty_node_is_taken_out_of_service_though_the_spec_is_refused() -> None:
    refused = observed(plan=FAULTY, spec=spec_of(document(nodes=4)))
    assert actions_of(decide(refused), Cordon) == [Cordon("n5", "XID 79", "incident-1")]


def test_what_an_annotation_says_is_read_back() -> None:
    assert read_cordoned_by(None) is None
    by = read_cordoned_by('{"job":"a/b","reason":"r","incident":"i","at":"t","later":1}')
    assert by is not None
    assert (by.job, by.reason, by.incident, by.at) == ("a/b", "r", "i", "t")
