from typing import Any

import pytest
from operator_builders import (
    NOW,
    OPTIONS,
    actions_of,
    document,
    ended_pod,
    job_object,
    node,
    nodes,
    observed,
    order,
    pending_pod,
    plan,
    pod,
    spec_of,
)

from holdfast.operator.decide.action import CreatePod, DeletePod
from holdfast.operator.decide.observed import Observed, Outcome
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.decide.staffing import CREATED_AT_ONCE, NEXT_PAGE_S
from holdfast.operator.kube.objects import Node, Taint


def decide(seen: Observed, now: float = NOW) -> Outcome:
    return reconcile(seen, OPTIONS, now)


def created(outcome: Outcome) -> list[str]:
    return [each.manifest["metadata"]["name"] for each in actions_of(outcome, CreatePod)]


def deleted(outcome: Outcome) -> dict[str, int | None]:
    return {each.name: each.grace_s for each in actions_of(outcome, DeletePod)}


def test_what_is_missing_is_created_with_the_next_numbers() -> None:
    outcome = decide(observed(plan=plan(4, 1)))
    assert created(outcome) == ["gpt-2", "gpt-3", "gpt-4"]
    assert outcome.status is not None
    assert outcome.status["podsCreated"] == 5


def test_a_number_is_never_used_twice() -> None:
    remembered = job_object(status={"podsCreated": 7})
    assert created(decide(observed(job=remembered, plan=plan(3)))) == ["gpt-7"]
    foreign = pod(11, owner="uid-of-the-job-before")
    assert created(decide(observed(pods=(pod(0), pod(1), foreign), plan=plan(3)))) == ["gpt-12"]


def test_thousands_are_created_in_pages_so_that_other_jobs_have_their_turn() -> None:
    numbers, there, wanted = list[str](), (pod(0), pod(1)), 2 * CREATED_AT_ONCE + 202
    for _ in range(3):
        outcome = decide(observed(pods=there, plan=plan(wanted)))
        page = created(outcome)
        assert len(page) <= CREATED_AT_ONCE
        assert (outcome.requeue_after_s == NEXT_PAGE_S) == (len(page) == CREATED_AT_ONCE)
        numbers += page
        there = tuple(pending_pod(number) for number in range(2 + len(numbers)))
    assert numbers == [f"gpt-{number}" for number in range(2, wanted)]
    assert created(decide(observed(pods=there, plan=plan(wanted)))) == []


def test_pods_of_another_owner_or_another_name_count_for_nothing() -> None:
    strange = (pod(0), pod(1, owner="another"), pod(5, job="other"))
    outcome = decide(observed(pods=strange, plan=plan(2)))
    assert created(outcome) == ["gpt-2"]
    assert deleted(outcome) == {}


def test_nothing_is_created_while_the_watchdog_is_away() -> None:
    outcome = decide(observed(plan=plan(4), heard_age_s=0.5))
    assert created(outcome) == []
    assert "2 pods are missing; the watchdog is away" in outcome.reason


def test_a_released_member_goes_and_is_replaced() -> None:
    outcome = decide(observed(plan=plan(2, release=("gpt-0",))))
    assert (deleted(outcome), created(outcome)) == ({"gpt-0": None}, ["gpt-2"])
    smaller = decide(observed(plan=plan(1, release=("gpt-0",))))
    assert (deleted(smaller), created(smaller)) == ({"gpt-0": None}, [])


def test_a_running_pod_too_many_stays_until_the_plan_releases_it() -> None:
    assert deleted(decide(observed(plan=plan(1)))) == {}


def test_of_pods_too_many_those_without_a_place_go_first_and_then_the_newest() -> None:
    pods = (pod(0), pending_pod(1), pending_pod(2, node="n2"), pending_pod(3, node="n3"), pending_pod(4))
    assert list(deleted(decide(observed(pods=pods, plan=plan(4))))) == ["gpt-4"]
    assert list(deleted(decide(observed(pods=pods, plan=plan(2))))) == ["gpt-4", "gpt-1", "gpt-3"]
    assert list(deleted(decide(observed(pods=pods, plan=plan(1))))) == ["gpt-4", "gpt-1", "gpt-3", "gpt-2"]


def test_all_pods_go_when_the_plan_wants_none() -> None:
    pods = (pod(0), pending_pod(1), pod(2, deleted=True), ended_pod(3), pod(4))
    outcome = decide(observed(pods=pods, plan=plan(0, avoid=(order("n4"),))))
    assert deleted(outcome) == {"gpt-0": None, "gpt-1": None, "gpt-4": None}
    assert created(outcome) == []


LEFT: list[tuple[str, dict[str, Node], dict[str, object]]] = [
    ("avoided", nodes(), {"avoid": (order("n0"),)}),
    ("cordoned", {**nodes(), "n0": node("n0", cordoned_by="research/gpt")}, {"cordon": (order("n0"),)}),
    ("drained by somebody", {**nodes(), "n0": node("n0", unschedulable=True)}, {}),
]


@pytest.mark.parametrize(("how", "there", "orders"), LEFT, ids=[name for name, _, _ in LEFT])
def test_a_member_on_a_node_to_be_left_is_replaced_first_and_goes_when_released(
    how: str, there: dict[str, Node], orders: dict[str, object]
) -> None:
    before = decide(observed(nodes=there, plan=plan(2, **orders)))
    assert (created(before), deleted(before)) == (["gpt-2"], {}), how
    after = decide(
        observed(nodes=there, pods=(pod(0), pod(1), pod(2)), plan=plan(2, release=("gpt-0",), **orders))
    )
    assert (created(after), deleted(after)) == ([], {"gpt-0": None}), how


def test_a_pod_goes_with_its_node_and_by_force_only_once_it_is_released() -> None:
    there = nodes("n1", "n2")
    gone = decide(observed(nodes=there))
    assert (created(gone), deleted(gone)) == (["gpt-2"], {"gpt-0": None})
    leaving = (pod(0, deleted=True, deletion_grace_s=30), pod(1), pending_pod(2))
    assert deleted(decide(observed(nodes=there, pods=leaving))) == {}
    released = plan(2, release=("gpt-0",))
    assert deleted(decide(observed(nodes=there, pods=leaving, plan=released))) == {"gpt-0": 0}
    forced = (pod(0, deleted=True, deletion_grace_s=0), *leaving[1:])
    assert deleted(decide(observed(nodes=there, pods=forced, plan=released))) == {}


def test_a_pod_on_a_silent_node_stays_until_it_is_released() -> None:
    there = {**nodes(), "n0": node("n0", ready="Unknown")}
    assert decide(observed(nodes=there)).reason == "the pods are as the plan wants them"
    outcome = decide(observed(nodes=there, plan=plan(2, release=("gpt-0",))))
    assert (created(outcome), deleted(outcome)) == (["gpt-2"], {"gpt-0": 0})


def test_a_pod_that_does_not_run_yet_keeps_its_grace_on_a_silent_node() -> None:
    there = {**nodes(), "n1": node("n1", ready="Unknown")}
    assert deleted(decide(observed(nodes=there, pods=(pod(0), pending_pod(1, node="n1")), plan=plan(1)))) == {
        "gpt-1": None
    }


def test_new_pods_keep_away_from_avoided_nodes_by_their_host_name_label() -> None:
    there = {**nodes(), "n5": node("n5", labels={"kubernetes.io/hostname": "host-of-n5"})}
    seen = observed(pods=(), nodes=there, plan=plan(1, avoid=(order("n5"), order("n98")), cordon=(order("n5"),)))
    (create,) = actions_of(decide(seen), CreatePod)
    (term,) = create.manifest["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["host-of-n5", "n98"]


DRAINED = (Taint("ToBeDeletedByClusterAutoscaler", "NoSchedule"),)
ALL = {"operator": "Exists"}


@pytest.mark.parametrize(
    ("taints", "tolerations", "kept_away"),
    [
        (DRAINED, [ALL], True),
        (
            DRAINED,
            [{"key": "ToBeDeletedByClusterAutoscaler", "operator": "Exists", "tolerationSeconds": 60}],
            True,
        ),
        (DRAINED, [{"key": "nvidia.com/gpu", "operator": "Exists"}], False),
        ((*DRAINED, Taint("other", "NoSchedule")), [{"key": DRAINED[0].key, "operator": "Exists"}], False),
        (DRAINED, [], False),
        ((Taint("spot", "NoSchedule"),), [ALL], False),
        ((), [ALL], False),
    ],
)
def test_new_pods_keep_away_from_a_drained_node_that_the_scheduler_would_choose_again(
    taints: tuple[Taint, ...], tolerations: list[dict[str, Any]], kept_away: bool
) -> None:
    template = {"spec": {"containers": [{"name": "trainer"}], "tolerations": tolerations}}
    there = {**nodes(), "n5": node("n5", taints=taints)}
    seen = observed(pods=(), nodes=there, plan=plan(1), spec=spec_of(document(template=template)))
    (create,) = actions_of(decide(seen), CreatePod)
    assert ("n5" in str(create.manifest["spec"].get("affinity"))) is kept_away


def test_an_ended_pod_is_replaced_at_once_and_the_newest_three_are_kept() -> None:
    ended = [ended_pod(number, ended_at=NOW - 100 + number) for number in range(5)]
    outcome = decide(observed(pods=(*ended, pod(5)), plan=plan(2)))
    assert created(outcome) == ["gpt-6"]
    assert deleted(outcome) == {"gpt-0": None, "gpt-1": None}


def test_a_pod_that_ended_well_holds_its_place_for_a_moment() -> None:
    pods = (ended_pod(0, exit_code=0, ended_at=NOW - 1), ended_pod(1, exit_code=0, ended_at=NOW - 1))
    waiting = decide(observed(pods=pods))
    assert created(waiting) == []
    assert waiting.requeue_after_s == pytest.approx(9.0)
    assert created(decide(observed(pods=pods), NOW + 9)) == ["gpt-2", "gpt-3"]


@pytest.mark.parametrize(("quick_ends", "wait_s"), [(0, 10), (1, 20), (4, 160), (5, 300), (40, 300)])
def test_a_pod_that_ends_at_its_start_is_replaced_later_each_time(quick_ends: int, wait_s: float) -> None:
    pods = (ended_pod(3, ran_s=2, ended_at=NOW, quick_ends=quick_ends), pod(1))
    early = decide(observed(pods=pods), NOW + wait_s - 1)
    assert (created(early), early.requeue_after_s) == ([], pytest.approx(1.0))
    (create,) = actions_of(decide(observed(pods=pods), NOW + wait_s), CreatePod)
    assert create.manifest["metadata"]["annotations"]["holdfast.dev/quick-ends"] == str(min(quick_ends, 16) + 1)


def test_a_quick_end_holds_back_its_own_replacement_and_no_other() -> None:
    pods = (ended_pod(0, ran_s=2, ended_at=NOW - 1), ended_pod(1, ran_s=7200, ended_at=NOW - 1))
    outcome = decide(observed(pods=pods))
    assert created(outcome) == ["gpt-2"]
    assert "1 of them are held back" in outcome.reason


def test_a_quick_end_of_long_ago_is_forgotten() -> None:
    pods = (ended_pod(0, ran_s=2, ended_at=NOW - 700, quick_ends=3), pod(1))
    (create,) = actions_of(decide(observed(pods=pods)), CreatePod)
    assert "holdfast.dev/quick-ends" not in create.manifest["metadata"]["annotations"]


def test_quick_ends_are_kept_while_they_hold_back_what_comes_next() -> None:
    ended = tuple(ended_pod(number, ran_s=1, ended_at=NOW - 1) for number in range(6))
    assert deleted(decide(observed(pods=ended, plan=plan(6)))) == {}
    later = decide(observed(pods=ended, plan=plan(6)), NOW + 10)
    assert deleted(later) == {"gpt-0": None, "gpt-1": None, "gpt-2": None}
    assert created(later) == [f"gpt-{number}" for number in range(6, 12)]


def test_what_is_written_on_a_pod_by_somebody_else_is_no_number() -> None:
    odd = ended_pod(0, ran_s=1, ended_at=NOW)
    odd.metadata.annotations["holdfast.dev/quick-ends"] = "many"
    (create,) = actions_of(decide(observed(pods=(odd, pod(1))), NOW + 10), CreatePod)
    assert create.manifest["metadata"]["annotations"]["holdfast.dev/quick-ends"] == "1"


def test_a_pod_that_waits_for_a_place_is_made_anew_when_the_nodes_to_avoid_change() -> None:
    (create,) = actions_of(decide(observed(pods=(pod(0),), plan=plan(2, avoid=(order("n5"),)))), CreatePod)
    annotations = create.manifest["metadata"]["annotations"]
    assert annotations["holdfast.dev/avoids"] == "n5"
    waiting = pending_pod(1, "0/5 nodes are available")
    waiting.metadata.annotations.update(annotations)
    still = decide(observed(pods=(pod(0), waiting), plan=plan(2, avoid=(order("n5"),))))
    assert (created(still), deleted(still)) == ([], {})
    returned = decide(observed(pods=(pod(0), waiting), plan=plan(2, returned=("n5",))))
    assert (created(returned), deleted(returned)) == (["gpt-2"], {"gpt-1": None})
    placed = pod(1, phase="Pending", node="n1")
    placed.metadata.annotations.update(annotations)
    assert deleted(decide(observed(pods=(pod(0), placed), plan=plan(2)))) == {}


def test_a_pod_that_waits_for_a_place_stays_while_nobody_would_make_another() -> None:
    waiting = pending_pod(1, "0/5 nodes are available")
    away = observed(pods=(pod(0), waiting), plan=plan(2, avoid=(order("n5"),)), heard_age_s=1.0)
    assert deleted(decide(away)) == {}


def test_of_waiting_pods_too_many_the_outdated_go_alone() -> None:
    waiting = (pending_pod(1), pending_pod(2))
    waiting[0].metadata.annotations["holdfast.dev/avoids"] = "n5"
    outcome = decide(observed(pods=(pod(0), *waiting), plan=plan(2)))
    assert (created(outcome), list(deleted(outcome))) == ([], ["gpt-1"])
