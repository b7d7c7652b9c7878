"""Objects that ask for the repair of nodes: asked for once, heard, made stronger, and removed."""

from typing import Any

import msgspec
import pytest
from operator_builders import JOB_ID, NOW, OPTIONS, UID, actions_of, node, nodes, observed, order, plan, pod

from holdfast.api.cordon import CORDONED_BY, CordonedBy
from holdfast.api.jobstatus import Condition
from holdfast.api.plan import NodeObserved, NodeOrder, Plan
from holdfast.api.remediation import RemediationOutcome
from holdfast.api.xid import Recovery
from holdfast.operator.decide.action import (
    AskForRemediation,
    ChangeRemediation,
    EndRemediation,
    SetNodeHealth,
    Tell,
    Uncordon,
)
from holdfast.operator.decide.conditionmap import OURS
from holdfast.operator.decide.observed import Cordoning, HandOn
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.decide.remediations import ASKED_BY, Asker, asked_for, outcome_of, over
from holdfast.operator.kube.objects import Metadata, Node, NodeStatus, Remediation, text_of
from holdfast.operator.kube.writes import merge_patch

OTHER = "research/other"
TTL_S = 3600.0
ASKS = msgspec.structs.replace(OPTIONS, hand_on=HandOn.REMEDIATION, remediation_ttl_s=TTL_S)
NOBODY: frozenset[str] = frozenset()


def faulty(
    incident: str | None = "incident-1", remedy: Recovery = Recovery.RESET_GPU, gpu: str | None = None
) -> Plan:
    return plan(cordon=(NodeOrder("n1", "XID 79", incident, remedy, gpu),))


def asks(
    wanted: Plan, *there: Remediation, job: str = JOB_ID, uid: str = UID, now: float = NOW, **more: Any
) -> list[Any]:
    asker, alive = Asker(job, uid), more.get("alive", NOBODY)
    known = {each.metadata.name: each for each in there}
    occupied = more.get("occupied", NOBODY)
    asking = asked_for(asker, wanted, nodes(), known, occupied)
    return [*asking, *over(asker, wanted, known, alive=alive, ttl_s=TTL_S, now=now)]


def made(action: AskForRemediation, **status: Any) -> Remediation:
    """The object as the API server has it."""
    given = action.manifest
    metadata = Metadata(
        name=given["metadata"]["name"],
        uid="uid-of-n1",
        resource_version="5",
        generation=1,
        annotations=given["metadata"]["annotations"],
        creation_timestamp=text_of(NOW),
    )
    return Remediation(metadata, given["spec"], status)


def changed(there: Remediation, action: ChangeRemediation) -> Remediation:
    """The object after that; another spec is another generation."""
    assert (action.name, action.uid, action.version) == ("n1", "uid-of-n1", there.metadata.resource_version)
    wanted = action.change["metadata"]["annotations"]
    annotations = {
        key: value for key, value in {**there.metadata.annotations, **wanted}.items() if value is not None
    }
    generation = there.metadata.generation + ("spec" in action.change)
    metadata = msgspec.structs.replace(there.metadata, annotations=annotations, generation=generation)
    return Remediation(metadata, {**there.spec, **action.change.get("spec", {})}, there.status)


def asked(wanted: Plan | None = None, job: str = JOB_ID, uid: str = UID, **status: Any) -> Remediation:
    (action,) = asks(wanted or faulty(), job=job, uid=uid)
    return made(action, **status)


def test_it_is_asked_for_once_with_the_name_of_its_node() -> None:
    (action,) = asks(faulty(gpu="GPU-3"))
    assert isinstance(action, AskForRemediation)
    assert action.manifest["kind"] == "NodeRemediation"
    about = action.manifest["metadata"]
    assert about["name"] == "n1"
    assert [each["kind"] for each in about["ownerReferences"]] == ["Node"]
    assert action.manifest["spec"] == {
        "node": "n1",
        "action": "ResetGPU",
        "reason": "XID 79",
        "job": JOB_ID,
        "incident": "incident-1",
        "gpu": "GPU-3",
    }
    assert asks(faulty(gpu="GPU-3"), made(action)) == []


@pytest.mark.parametrize(
    ("remedy", "action"),
    [(Recovery.REBOOT_NODE, "Reboot"), (Recovery.REPLACE, "Replace"), (Recovery.RESET_GPU, "ResetGPU")],
)
def test_the_remedy_says_what_is_asked_for(remedy: Recovery, action: str) -> None:
    (asking,) = asks(faulty(remedy=remedy))
    assert asking.manifest["spec"]["action"] == action


NOT_ASKED = {
    "nobody can tell what would help": faulty(remedy=Recovery.NOTHING),
    "somebody asked for the cordon": faulty(incident=None),
    "it is only avoided": plan(avoid=(order("n1"),)),
    "it is gone": plan(cordon=(NodeOrder("n99", "XID 79", "incident-1", Recovery.REPLACE),)),
}


@pytest.mark.parametrize("wanted", NOT_ASKED.values(), ids=NOT_ASKED)
def test_nothing_is_asked_for_where(wanted: Plan) -> None:
    assert asks(wanted) == []


def test_nothing_is_asked_for_while_pods_of_the_job_are_on_the_node() -> None:
    assert asks(faulty(), occupied=frozenset({"n1"})) == []


def test_another_job_joins_what_is_asked_for_already() -> None:
    there = asked(job=OTHER)
    (action,) = asks(faulty(), there)
    assert isinstance(action, ChangeRemediation)
    assert "spec" not in action.change
    both = changed(there, action)
    assert sorted(value for key, value in both.metadata.annotations.items() if key.startswith(ASKED_BY)) == [
        f"{JOB_ID} incident-1 {UID}",
        f"{OTHER} incident-1 {UID}",
    ]
    assert asks(faulty(), both) == []


def test_a_node_that_fails_again_after_it_was_repaired_gets_the_next_stronger() -> None:
    there = asked(outcome="Succeeded", observedGeneration=1)
    names = []
    for number in range(2, 5):
        (action,) = asks(faulty(f"incident-{number}"), there)
        there = changed(there, action)
        assert outcome_of(there) is None, "the outcome is of the spec before"
        names.append((there.spec["action"], there.spec["incident"]))
        done = {"outcome": "Succeeded", "observedGeneration": there.metadata.generation}
        there = Remediation(there.metadata, there.spec, done)
    assert names == [("Reboot", "incident-2"), ("Replace", "incident-3"), ("Replace", "incident-4")]


def test_one_that_failed_is_not_asked_for_again() -> None:
    there = asked(outcome="Failed", message="the BMC is silent", observedGeneration=1)
    assert asks(faulty(), there) == []
    assert asks(faulty(), there, now=NOW + 100 * TTL_S) == []


def test_an_outcome_without_a_generation_is_of_the_first_spec_alone() -> None:
    there = asked(outcome="Succeeded")
    assert outcome_of(there) is RemediationOutcome.SUCCEEDED
    (action,) = asks(faulty("incident-2"), there)
    assert outcome_of(changed(there, action)) is None


def test_what_is_needed_no_more_is_withdrawn_unless_somebody_has_begun() -> None:
    assert asks(plan(), asked()) == [EndRemediation("n1", "uid-of-n1")]
    assert asks(plan(), asked(outcome="Running", observedGeneration=1)) == []
    assert asks(plan(), asked(job=OTHER)) == [], "another job's"


def test_one_of_several_leaves_and_the_others_go_on_waiting() -> None:
    there = asked(job=OTHER)
    (joins,) = asks(faulty(), there)
    both = changed(there, joins)
    (leaves,) = asks(plan(), both)
    assert isinstance(leaves, ChangeRemediation)
    assert asks(plan(), changed(both, leaves), job=OTHER) == [EndRemediation("n1", "uid-of-n1")]


def test_one_that_succeeded_is_kept_for_its_time() -> None:
    there = asked(outcome="Succeeded", observedGeneration=1, completedAt=text_of(NOW + 60.0))
    assert asks(plan(), there, now=NOW + TTL_S) == []
    assert asks(plan(), there, now=NOW + TTL_S + 61.0) == [EndRemediation("n1", "uid-of-n1")]


def test_one_that_succeeded_is_kept_while_another_job_waits_to_be_told() -> None:
    there = asked(job=OTHER, uid="uid-of-other", outcome="Succeeded", observedGeneration=1)
    late = NOW + TTL_S
    assert asks(plan(), there, alive=frozenset({UID, "uid-of-other"}), now=late) == []
    assert asks(plan(), there, alive=frozenset({UID}), now=late) == [EndRemediation("n1", "uid-of-n1")]
    (joins,) = asks(faulty(), asked(job=OTHER, uid="uid-of-other"))
    both = changed(asked(job=OTHER, uid="uid-of-other"), joins)
    both = Remediation(both.metadata, both.spec, {"outcome": "Succeeded", "observedGeneration": 1})
    (leaves,) = asks(plan(), both, alive=frozenset({UID, "uid-of-other"}), now=late)
    assert isinstance(leaves, ChangeRemediation)


GONE = "research/yesterday"


def left_by(job: str, at: float = NOW) -> Node:
    """The node as a job left it that is gone: out of service, and told as faulty."""
    by = CordonedBy(job, "XID 79", "incident-1", text_of(at))
    one = node("n1", cordoned_by=job)
    annotations = {CORDONED_BY: msgspec.json.encode(by).decode()}
    health = Condition(OURS, "False", "NeedsGpuReset", f"XID 79 (TrainingJob {job}, incident-1)", text_of(at))
    conditions = (*one.status.conditions, health)
    return Node(msgspec.structs.replace(one.metadata, annotations=annotations), one.spec, NodeStatus(conditions))


def taken_back(there: Remediation, left: Node, *, alive: frozenset[str] = NOBODY, **options: Any) -> list[Any]:
    """What another job does about it."""
    seen = observed(plan=plan(), nodes={**nodes(), "n1": left}, remediations={"n1": there}, alive=alive)
    outcome = reconcile(seen, msgspec.structs.replace(ASKS, **options), NOW + 60.0)
    return [*actions_of(outcome, Uncordon), *actions_of(outcome, SetNodeHealth)]


def test_a_node_that_was_repaired_for_a_job_that_is_gone_comes_back() -> None:
    done = asked(job=GONE, uid="uid-gone", outcome="Succeeded", observedGeneration=1, completedAt=text_of(NOW + 9))
    uncordons, health = taken_back(done, left_by(GONE))
    assert uncordons == Uncordon("n1", GONE)
    assert (health.node, health.status) == ("n1", "True")
    assert [type(each) for each in taken_back(done, left_by(GONE), cordoning=Cordoning.CONSUME)] == [SetNodeHealth]
    assert taken_back(done, left_by(GONE), alive=frozenset({"uid-gone"})) == [], "it takes it back itself"
    assert taken_back(done, left_by(GONE, at=NOW + 30.0)) == [], "the next job of that name found something"
    assert taken_back(asked(job=GONE, uid="uid-gone"), left_by(GONE)) == [], "nobody has repaired it"
    strangers = asked(job="others/gone", uid="uid-gone", outcome="Succeeded", observedGeneration=1)
    assert taken_back(strangers, left_by("others/gone")) == [], "of another namespace, maybe another operator's"


def test_one_that_is_being_deleted_is_left_alone() -> None:
    there = asked()
    gone = Remediation(msgspec.structs.replace(there.metadata, deletion_timestamp=text_of(NOW)), there.spec)
    assert asks(faulty("incident-2"), gone) == []
    assert asks(plan(), gone) == []


def seen(there: Remediation, wanted: Plan) -> str:
    """For which incident the watchdog is told that the node was repaired."""
    outcome = reconcile(observed(plan=wanted, remediations={"n1": there}), ASKS, NOW)
    told = [each.observed for each in actions_of(outcome, Tell)]
    return next(each.remediated for each in told if isinstance(each, NodeObserved) and each.node == "n1")


def test_the_watchdog_hears_of_what_succeeded_for_its_own_incident() -> None:
    assert seen(asked(), faulty()) == ""
    assert seen(asked(outcome="Running", observedGeneration=1), faulty()) == ""
    assert seen(asked(outcome="Failed", observedGeneration=1), faulty()) == ""
    done = asked(outcome="Succeeded", observedGeneration=1)
    assert seen(done, faulty()) == "incident-1"
    assert seen(done, faulty("incident-2")) == "", "that came after it"
    assert seen(asked(job=OTHER, outcome="Succeeded", observedGeneration=1), faulty()) == "", (
        "not asked by this job"
    )


def test_what_was_done_for_an_earlier_job_of_the_name_is_nothing_done_for_this_one() -> None:
    """Its incidents count from one again."""
    done = asked(uid="uid-of-yesterday", outcome="Succeeded", observedGeneration=1)
    assert seen(done, faulty()) == ""
    (stronger,) = asks(faulty(), done)
    assert stronger.change["spec"]["action"] == "Reboot"
    failed = asked(uid="uid-of-yesterday", outcome="Failed", message="no power", observedGeneration=1)
    (joins,) = asks(faulty(), failed)
    assert "spec" not in joins.change
    waiting = asked(uid="uid-of-yesterday")
    assert asks(plan(), waiting) == [], "the node that the earlier one left is faulty still"


def test_an_outcome_that_nobody_knows_is_none() -> None:
    assert outcome_of(asked(outcome="Perhaps", observedGeneration=1)) is None


def test_a_job_asks_when_its_pods_have_left_and_tells_of_a_failure() -> None:
    there = observed(plan=faulty(), pods=(pod(0), pod(1)))
    assert actions_of(reconcile(there, ASKS, NOW), AskForRemediation) == []
    left = observed(plan=faulty(), pods=(pod(0), pod(2)))
    outcome = reconcile(left, ASKS, NOW)
    assert len(actions_of(outcome, AskForRemediation)) == 1
    assert "RemediationAsked" in [each.reason for each in outcome.events]
    failed = asked(outcome="Failed", message="the BMC is silent", observedGeneration=1)
    outcome = reconcile(observed(plan=faulty(), pods=(pod(0), pod(2)), remediations={"n1": failed}), ASKS, NOW)
    (health,) = actions_of(outcome, SetNodeHealth)
    assert "its remediation failed: the BMC is silent" in health.message


def test_a_change_is_what_a_merge_patch_makes_of_it() -> None:
    """What `changed` does above is what the API server does."""
    there = asked(outcome="Succeeded", observedGeneration=1)
    (action,) = asks(faulty("incident-2"), there)
    after = changed(there, action)
    before = {"spec": there.spec}
    assert merge_patch(before, {"spec": after.spec}) == {"spec": {"action": "Reboot", "incident": "incident-2"}}
