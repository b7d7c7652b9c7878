"""Interventions on their way to the watchdog and back."""

import re
from typing import Any

import pytest
from apiserver import Refused
from fake_watchdog_for_operator import FakeOperatorWatchdog
from operator_rig import Cluster, OperatorProcess, eventually

from holdfast.api.intervention import InterventionAction, InterventionState
from holdfast.api.selftest import TestLevel


async def ask(cluster: Cluster, name: str, **spec: Any) -> None:
    manifest = {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "Intervention",
        "metadata": {"name": name},
        "spec": {"job": "gpt", "action": "Checkpoint", "reason": "before an upgrade"} | spec,
    }
    await cluster.api.call("POST", cluster.path(plural="interventions"), manifest)


async def until(cluster: Cluster, name: str, state: str) -> dict[str, Any]:
    shown: dict[str, Any] = {}

    async def so() -> bool:
        nonlocal shown
        asked = await cluster.get(cluster.path(name, plural="interventions"))
        shown = (asked or {}).get("status") or {}
        return shown.get("state") == state

    await eventually(state, so, lambda: shown)
    return shown


async def test_an_intervention_is_passed_on_once_and_answered(
    cluster: Cluster, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    operator.start()
    await cluster.apply()
    await ask(cluster, "one")
    status = await until(cluster, "one", "Done")
    assert status["outcome"] == "as the test says"
    assert status["startedAt"] <= status["finishedAt"]
    asked = await cluster.get(cluster.path("one", plural="interventions"))
    assert asked is not None
    assert [each.id for each in watchdog.interventions] == [asked["metadata"]["uid"]]


async def test_every_field_of_an_intervention_reaches_the_watchdog(
    cluster: Cluster, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    operator.start()
    await cluster.apply()
    back = {"toStep": 40, "learningRateScale": 0.5, "skipBatches": 3}
    await ask(cluster, "back", action="Rewind", rewind=back, reason="the data was bad")
    await ask(cluster, "out", action="Evict", node="node-1")
    await ask(cluster, "size", action="Resize", nodes=2)
    await ask(cluster, "over", action="SkipBatches", skipBatches=7)
    await ask(cluster, "anew", action="Restart", fresh=True)
    await ask(cluster, "test", action="Test", node="node-2", level="full")
    await ask(cluster, "trace", action="Profile", profile={"ranks": [0, 1], "steps": 3})
    for name in ("back", "out", "size", "over", "anew", "test", "trace"):
        await until(cluster, name, "Done")
    asked = {each.action: each for each in watchdog.interventions}
    rewind = asked[InterventionAction.REWIND]
    assert (rewind.to_step, rewind.learning_rate_scale, rewind.skip_batches) == (40, 0.5, 3)
    assert (rewind.job.rpartition("/")[2], rewind.reason) == ("gpt", "the data was bad")
    assert asked[InterventionAction.EVICT].node == "node-1"
    assert asked[InterventionAction.RESIZE].nodes == 2
    assert asked[InterventionAction.SKIP_BATCHES].skip_batches == 7
    assert (asked[InterventionAction.RESTART].fresh, rewind.fresh) == (True, False)
    assert (asked[InterventionAction.TEST].node, asked[InterventionAction.TEST].level) == (
        "node-2",
        TestLevel.FULL,
    )
    assert rewind.level is None
    assert (asked[InterventionAction.PROFILE].ranks, asked[InterventionAction.PROFILE].steps) == ((0, 1), 3)


async def test_a_pending_intervention_is_asked_about_until_it_is_answered(
    cluster: Cluster, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    watchdog.answer_intervention = InterventionState.PENDING
    operator.start()
    await cluster.apply()
    await ask(cluster, "one")
    await until(cluster, "one", "Pending")
    watchdog.answer_intervention = InterventionState.DONE
    await until(cluster, "one", "Done")
    assert len(watchdog.interventions) == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"action": "Evict"}, "node is needed by Evict, Return and Test"),
        ({"action": "Explode"}, 'Unsupported value: "Explode"'),
        ({"action": "Rewind", "step": 0, "node": "node-1"}, "node is needed by Evict, Return and Test"),
    ],
    ids=["without its node", "of no such action", "with a node that nobody reads"],
)
async def test_an_intervention_that_makes_no_sense_is_told_as_it_is_created(
    cluster: Cluster, given: dict[str, Any], says: str
) -> None:
    await cluster.apply()
    with pytest.raises(Refused, match=re.escape(says)):
        await ask(cluster, "one", **given)


async def test_an_intervention_for_a_job_that_is_not_there_names_those_that_are(
    cluster: Cluster, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    operator.start()
    await cluster.apply()
    await ask(cluster, "one", job="gtp")
    status = await until(cluster, "one", "Refused")
    assert "there are: gpt" in status["outcome"]


async def test_an_intervention_may_be_applied_together_with_its_job(
    cluster: Cluster, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    operator.start()
    await cluster.apply()
    await ask(cluster, "first")
    await until(cluster, "first", "Done")  # The operator leads and looks.
    await ask(cluster, "one", job="later")
    status = await until(cluster, "one", "Pending")
    assert status["outcome"] == "no job later has been seen yet"
    await cluster.apply(name="later")
    await until(cluster, "one", "Done")


async def test_an_intervention_on_an_invalid_job_is_refused_while_the_watchdog_is_away(
    cluster: Cluster, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    operator.start()
    await watchdog.close()
    prices = [{"gpu": "A", "gpuHour": 1}, {"gpu": "A", "gpuHour": 3}]
    await cluster.apply(cost={"gpuHour": 2, "prices": prices})
    await ask(cluster, "one")
    status = await until(cluster, "one", "Refused")
    why = "the job is Invalid: spec.cost.prices[1].gpuHour: 3.0 is not accepted; say the price of A once"
    assert status["outcome"] == f"{why}; correct the spec and apply it again"
    assert watchdog.interventions == []
    await watchdog.open()


async def test_an_intervention_waits_for_a_watchdog_that_is_away(
    cluster: Cluster, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    operator.start()
    await cluster.apply()
    await watchdog.until("submitted", lambda: watchdog.job(cluster.id()).policy is not None)
    await watchdog.close()
    await ask(cluster, "one")
    status = await until(cluster, "one", "Pending")
    assert status["outcome"].startswith(
        f"waiting for the watchdog: the watchdog does not answer at {watchdog.endpoint}: "
    )
    assert status["outcome"].endswith("; retrying")
    await watchdog.open()
    await until(cluster, "one", "Done")
