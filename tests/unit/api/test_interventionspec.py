from typing import Any

import pytest

from holdfast.api.errors import InvalidSpec
from holdfast.api.intervention import InterventionAction, InterventionRequest
from holdfast.api.interventionspec import read_intervention, request_of
from holdfast.api.selftest import TestLevel


def document(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "Intervention",
        "metadata": {"generateName": "fix-", "namespace": "research"},
        "spec": {"job": "gpt", "reason": "bad shard", **spec},
    }


def test_a_rewind_becomes_a_request_with_all_it_says() -> None:
    rewind = {"toStep": 47000, "learningRateScale": 0.5, "skipBatches": 200}
    request = request_of(read_intervention(document(action="Rewind", rewind=rewind)), "rewind-1")
    assert request == InterventionRequest(
        id="rewind-1",
        job="research/gpt",
        action=InterventionAction.REWIND,
        reason="bad shard",
        to_step=47000,
        skip_batches=200,
        learning_rate_scale=0.5,
    )


@pytest.mark.parametrize(
    ("action", "fields", "expected"),
    [
        ("Evict", {"node": "n1"}, {"node": "n1"}),
        ("Return", {"node": "n1"}, {"node": "n1"}),
        ("Resize", {"nodes": 4}, {"nodes": 4}),
        ("SkipBatches", {"skipBatches": 9}, {"skip_batches": 9}),
        ("Pause", {}, {}),
        ("Resume", {}, {}),
        ("Restart", {}, {}),
        ("Restart", {"fresh": True}, {"fresh": True}),
        ("Checkpoint", {}, {}),
        ("Test", {"node": "n1"}, {"node": "n1"}),
        ("Test", {"node": "n1", "level": "full"}, {"node": "n1", "level": TestLevel.FULL}),
    ],
)
def test_every_action_carries_its_own_field(action: str, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    request = request_of(read_intervention(document(action=action, **fields)), "i")
    assert request == InterventionRequest(
        id="i", job="research/gpt", action=InterventionAction(action), reason="bad shard", **expected
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"action": "Evict"}, "spec.node: (missing) is not accepted; add it; Evict needs it"),
        ({"action": "Rewind"}, "spec.rewind: (missing) is not accepted; add it; Rewind needs it"),
        ({"action": "Resize"}, "spec.nodes: (missing) is not accepted; add it; Resize needs it"),
        ({"action": "SkipBatches"}, "spec.skipBatches: (missing) is not accepted; add it; SkipBatches needs it"),
        (
            {"action": "Pause", "node": "n1"},
            "spec.node: 'n1' is not accepted; remove it; Pause does not read it",
        ),
        (
            {"action": "Pause", "rewind": {"toStep": 1}},
            "spec.rewind: 'a mapping' is not accepted; remove it; Pause does not read it",
        ),
        (
            {"action": "Resume", "fresh": True},
            "spec.fresh: True is not accepted; remove it; Resume does not read it",
        ),
        (
            {"action": "Evict", "node": "n1", "level": "full"},
            "spec.level: 'full' is not accepted; remove it; Evict does not read it",
        ),
        (
            {"action": "Resize", "nodes": 0},
            "spec.nodes: 0 is not accepted; write a number of at least 1",
        ),
        (
            {"action": "Rewind", "rewind": {"toStep": -1}},
            "spec.rewind.toStep: -1 is not accepted; write a number of at least 0",
        ),
        (
            {"action": "evict", "node": "n1"},
            "spec.action: 'evict' is not accepted; write one of: 'Evict', 'Return', 'Checkpoint', 'Rewind', "
            "'Resize', 'Pause', 'Resume', 'SkipBatches', 'Restart', 'Test' or 'Profile'",
        ),
    ],
)
def test_a_bad_intervention_is_refused_with_field_value_and_fix(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        read_intervention(document(**spec))
    assert [str(problem) for problem in refused.value.problems] == [message]
