"""A template that changes while pods of the earlier one run, or wait."""

from typing import Any

import pytest
from operator_builders import (
    NOW,
    OPTIONS,
    actions_of,
    after,
    document,
    job_object,
    node,
    nodes,
    observed,
    plan,
    pod,
    report,
    spec_of,
)

from holdfast.operator.decide.action import CreatePod, DeletePod
from holdfast.operator.decide.observed import Observed, Options
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.kube.objects import EDITION, Pod, Waiting


def of_image(image: str, **spec: Any) -> dict[str, Any]:
    return document(template={"spec": {"containers": [{"name": "trainer", "image": image}]}}, **spec)


BEFORE, NOW_WANTED = of_image("train:1"), of_image("train:2")
STUCK = {"phase": "Pending", "waiting": Waiting("ImagePullBackOff", "no such image")}


def changed(*pods: Pod, **fields: Any) -> Observed:
    return observed(**{"pods": pods, "spec": spec_of(NOW_WANTED), **fields})


def deleted(seen: Observed) -> dict[str, str]:
    return {each.name: each.reason for each in actions_of(reconcile(seen, OPTIONS, NOW), DeletePod)}


def created(seen: Observed) -> list[str]:
    return [each.manifest["metadata"]["name"] for each in actions_of(reconcile(seen, OPTIONS, NOW), CreatePod)]


def up_to_date(seen: Observed) -> tuple[str, str, str]:
    conditions = (reconcile(seen, OPTIONS, NOW).status or {})["conditions"]
    (found,) = [each for each in conditions if each["type"] == "UpToDate"]
    return found["status"], found["reason"], found["message"]


def edition_written(given: dict[str, Any], options: Options = OPTIONS) -> str:
    seen = observed(spec=spec_of(given), pods=())
    manifests = [each.manifest for each in actions_of(reconcile(seen, options, NOW), CreatePod)]
    (edition,) = {each["metadata"]["annotations"][EDITION] for each in manifests}
    return str(edition)


def test_the_edition_is_of_what_the_user_says_and_of_nothing_else() -> None:
    same = [
        of_image("train:1"),
        of_image("train:1", generation=7),
        of_image("train:1", nodes={"min": 1, "max": 8}),
    ]
    assert len({edition_written(each) for each in same}) == 1
    assert edition_written(BEFORE, Options("other:1", "launcher:2")) == edition_written(BEFORE)
    others = [of_image("train:2"), of_image("train:1", entrypoint=["other.py"])]
    assert len({edition_written(each) for each in (BEFORE, *others)}) == 3


def test_pods_that_run_stay_and_the_condition_says_what_runs_and_what_will() -> None:
    seen = changed(pod(0, made_of=BEFORE), pod(1, made_of=BEFORE))
    assert (deleted(seen), created(seen)) == ({}, [])
    assert up_to_date(seen) == (
        "False",
        "EarlierTemplate",
        "gpt-0, gpt-1 run an earlier template (image train:1); new pods get image train:2; "
        "to replace them: kubectl holdfast restart gpt -n research",
    )


def test_it_is_told_as_an_event_once() -> None:
    seen = after(observed(pods=(pod(0, made_of=BEFORE), pod(1, made_of=BEFORE)), spec=spec_of(BEFORE)))
    told = after(seen, spec=spec_of(NOW_WANTED))
    events = [each for each in reconcile(told, OPTIONS, NOW).events if each.reason == "TemplateChanged"]
    assert [each.message[:40] for each in events] == ["gpt-0, gpt-1 run an earlier template (im"]
    assert "TemplateChanged" not in [each.reason for each in reconcile(after(told), OPTIONS, NOW).events]


@pytest.mark.parametrize("made_of", [NOW_WANTED, None], ids=["of this template", "before this was written down"])
def test_pods_of_the_template_are_up_to_date(made_of: dict[str, Any] | None) -> None:
    seen = changed(pod(0, made_of=made_of), pod(1, made_of=made_of), job=job_object(rolled_to=NOW_WANTED))
    assert deleted(seen) == {}
    assert up_to_date(seen) == ("True", "AsWritten", "")


def test_of_a_spec_that_is_refused_it_is_unknown() -> None:
    seen = observed(spec=spec_of(document(nodes=4)), pods=(pod(0, made_of=BEFORE),))
    assert up_to_date(seen)[:2] == ("Unknown", "SpecRefused")


def test_a_pod_that_is_stuck_on_the_image_of_before_is_replaced_when_the_image_is_corrected() -> None:
    seen = changed(pod(0, made_of=BEFORE), pod(1, made_of=BEFORE, **STUCK))
    assert deleted(seen) == {"gpt-1": "the template changed before it began"}
    assert created(seen) == ["gpt-2"]
    still = changed(pod(0, made_of=BEFORE), pod(1, made_of=NOW_WANTED, **STUCK))
    assert deleted(still) == {}


def test_while_the_watchdog_is_away_nobody_is_replaced() -> None:
    seen = changed(pod(0, made_of=BEFORE), pod(1, made_of=BEFORE, **STUCK), heard_age_s=3.0)
    assert deleted(seen) == {}


def test_a_restart_that_was_asked_for_since_replaces_them_all() -> None:
    asked = job_object(rolled_to=NOW_WANTED)
    seen = changed(
        pod(0, made_of=BEFORE), pod(1, made_of=BEFORE), pod(2, made_of=NOW_WANTED), job=asked, plan=plan(3)
    )
    reason = "the template changed and a restart was asked for"
    assert deleted(seen) == {"gpt-0": reason, "gpt-1": reason}
    assert created(seen) == ["gpt-3", "gpt-4"]
    assert up_to_date(seen)[1] == "Rolling"
    going = changed(pod(0, made_of=BEFORE, deleted=True), pod(2, made_of=NOW_WANTED), job=asked)
    assert deleted(going) == {}


def test_a_restart_before_the_change_asked_for_nothing() -> None:
    seen = changed(pod(0, made_of=BEFORE), pod(1, made_of=BEFORE), job=job_object(rolled_to=BEFORE))
    assert deleted(seen) == {}
    assert up_to_date(seen)[1] == "EarlierTemplate"


def test_many_pods_are_counted_and_the_nodes_to_avoid_are_heeded_as_before() -> None:
    many = changed(*(pod(number, made_of=BEFORE) for number in range(8)), plan=plan(8), report=report())
    assert up_to_date(many)[2].startswith("gpt-0, gpt-1, gpt-2, gpt-3, gpt-4 and 3 more run")
    unplaced = pod(1, made_of=NOW_WANTED, phase="Pending", node="")
    cordoned = {**nodes(), "n9": node("n9")}
    seen = changed(pod(0, made_of=NOW_WANTED), unplaced, nodes=cordoned)
    assert deleted(seen) == {}
