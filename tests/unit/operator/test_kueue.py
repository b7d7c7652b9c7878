"""A job in a queue of Kueue: its Workload, its gate, its share, what it gives back, and what it is told."""

from typing import Any

import msgspec
import pytest
from operator_builders import (
    NOW,
    OPTIONS,
    TEMPLATE,
    UID,
    actions_of,
    document,
    job_object,
    observed,
    plan,
    pod,
    report,
    spec_of,
)

from holdfast.api.jobstatus import Condition
from holdfast.api.status import JobPhase
from holdfast.operator.decide.action import Apply, ChangeWorkload, CreatePod, Delete, DeletePod, Submit
from holdfast.operator.decide.inqueue import WORKLOAD
from holdfast.operator.decide.observed import Observed, Outcome, Queueing
from holdfast.operator.decide.quota import AWAY_S, OVERDUE_S
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.kube.kueue import (
    Admission,
    AdmissionCheck,
    Assignment,
    Flavor,
    FlavorSpec,
    PodSetUpdate,
    Reclaimable,
    Workload,
)
from holdfast.operator.kube.objects import Job, JobMetadata, text_of

WITH_KUEUE = msgspec.structs.replace(OPTIONS, kueue=True, kueue_api="kueue.x-k8s.io/v1beta2")
NODES = {"min": 2, "max": 4, "spares": 1}
GPUS = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
SPEC: dict[str, Any] = {
    "nodes": NODES,
    "template": {"spec": {"containers": [{**TEMPLATE["spec"]["containers"][0], **GPUS}]}},
}
RESERVED = (("QuotaReserved", "True"), ("Admitted", "True"))


def queued_job(*, queue: str = "team", priority: str = "", **status: Any) -> Job:
    job = job_object(status=status)
    labels = {"kueue.x-k8s.io/queue-name": queue}
    if priority:
        labels["kueue.x-k8s.io/priority-class"] = priority
    return msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, labels=labels))


def seen(*workloads: Workload, queueing: dict[str, Any] | None = None, **fields: Any) -> Observed:
    """A job in the queue `team` that has no pods yet."""
    given: dict[str, Any] = {
        "job": queued_job(),
        "spec": spec_of(document(**SPEC)),
        "pods": (),
        "plan": plan(0),
        "report": report(JobPhase.SUSPENDED, admitted=0),
        "queueing": Queueing(workloads=workloads, flavors={"h100": H100}, **(queueing or {})),
    }
    return observed(**{**given, **fields})


H100 = Flavor(
    JobMetadata("h100"),
    FlavorSpec({"pool": "h100"}, ({"key": "pool", "operator": "Exists", "effect": "NoSchedule"},)),
)


def as_made(outcome: Outcome) -> Workload:
    """The Workload that is applied, as the API server answers."""
    (made,) = [each.manifest for each in actions_of(outcome, Apply) if each.manifest["kind"] == WORKLOAD]
    whole = {
        **made,
        "metadata": {
            **made["metadata"],
            "uid": "uid-of-workload",
            "resourceVersion": "7",
            "generation": 1,
            "creationTimestamp": text_of(NOW),
        },
    }
    return msgspec.convert(whole, Workload)


def said(workload: Workload, *conditions: tuple[str, ...], **status: Any) -> Workload:
    """With these conditions: type, status, reason, message."""
    told = tuple(Condition(each[0], each[1], *each[2:], last_transition_time=text_of(NOW)) for each in conditions)
    return msgspec.structs.replace(
        workload, status=msgspec.structs.replace(workload.status, conditions=told, **status)
    )


@pytest.fixture
def waiting() -> Workload:
    return as_made(reconcile(seen(), WITH_KUEUE, NOW))


def admission(count: int = 5, **flavors: str) -> Admission:
    given = flavors or {"gpu": "h100", "cpu": "h100"}
    return Admission("cluster", (Assignment("main", given, count),))


def admitted(workload: Workload, count: int = 5, **status: Any) -> Workload:
    return said(workload, *RESERVED, admission=admission(count), **status)


def evicted(workload: Workload, reason: str = "Preempted", count: int = 5) -> Workload:
    return said(
        workload, *RESERVED, ("Evicted", "True", reason, "for a job of more worth"), admission=admission(count)
    )


def running(*there: Workload, pods: int = 5, members: int = 4, spares: int = 1, **fields: Any) -> Observed:
    """It trains with what was admitted."""
    given: dict[str, Any] = {
        "pods": tuple(pod(each) for each in range(pods)),
        "plan": plan(members, spares),
        "report": report(JobPhase.RUNNING, admitted=members + spares),
    }
    return seen(*there, **{**given, **fields})


def condition(outcome: Outcome, type_: str = "QueueAdmitted") -> tuple[str, str, str]:
    assert outcome.status is not None
    (found,) = [each for each in outcome.status["conditions"] if each["type"] == type_]
    return found["status"], found["reason"], found.get("message", "")


def written(outcome: Outcome) -> dict[str, tuple[str, str]]:
    """What is written into the status of the Workload."""
    (change,) = actions_of(outcome, ChangeWorkload)
    assert (change.uid, change.version) == ("uid-of-workload", "7")
    return {each["type"]: (each["status"], each["reason"]) for each in change.status["conditions"]}


# Before it is admitted.


def test_a_job_without_a_queue_has_no_workload() -> None:
    outcome = reconcile(observed(queueing=Queueing()), WITH_KUEUE, NOW)
    assert [each for each in actions_of(outcome, Apply) if each.manifest["kind"] == WORKLOAD] == []
    assert condition(outcome)[:2] == ("Unknown", "NoQueue")


def test_a_job_with_a_queue_gets_a_workload_that_counts_its_spares_and_no_pods() -> None:
    outcome = reconcile(seen(plan=None, report=None), WITH_KUEUE, NOW)
    (made,) = [each.manifest for each in actions_of(outcome, Apply) if each.manifest["kind"] == WORKLOAD]
    (podset,) = made["spec"]["podSets"]
    assert (podset["name"], podset["count"], podset["minCount"]) == ("main", 5, 2)
    containers = podset["template"]["spec"]["containers"]
    assert [each["resources"]["limits"] for each in containers] == [{"nvidia.com/gpu": "8"}]
    assert podset["template"]["spec"].get("initContainers", []) == [], "the launcher's copy asks for nothing"
    assert made["spec"]["queueName"] == "team"
    assert [each["uid"] for each in made["metadata"]["ownerReferences"]] == [UID]
    assert actions_of(outcome, CreatePod) == []
    (submitted,) = actions_of(outcome, Submit)
    assert submitted.policy.admitted == 0


def test_what_runs_in_a_pod_is_not_written_into_the_workload() -> None:
    (made,) = [
        each.manifest
        for each in actions_of(reconcile(seen(), WITH_KUEUE, NOW), Apply)
        if each.manifest["kind"] == WORKLOAD
    ]
    (podset,) = made["spec"]["podSets"]
    for container in podset["template"]["spec"]["containers"]:
        assert container.keys() <= {"name", "resources", "restartPolicy"}


def test_no_pod_is_made_before_it_is_admitted_though_a_plan_of_before_wants_some(waiting: Workload) -> None:
    outcome = reconcile(running(waiting, pods=0), WITH_KUEUE, NOW)
    assert actions_of(outcome, CreatePod) == []
    (submitted,) = actions_of(outcome, Submit)
    assert submitted.policy.admitted == 0


def test_why_it_waits_is_said_in_the_words_of_kueue(waiting: Workload) -> None:
    says = "LocalQueue team doesn't exist"
    told = said(waiting, ("QuotaReserved", "False", "Inadmissible", says))
    assert condition(reconcile(seen(told), WITH_KUEUE, NOW)) == ("False", "Inadmissible", says)


def test_a_kueue_that_says_nothing_is_told_of(waiting: Workload) -> None:
    early = reconcile(seen(waiting), WITH_KUEUE, NOW + 1)
    assert condition(early)[1] == "Queued"
    assert early.requeue_after_s is not None
    assert early.requeue_after_s <= 59.0
    status, reason, says = condition(reconcile(seen(waiting), WITH_KUEUE, NOW + 61))
    assert (status, reason) == ("False", "Unheard")
    assert "kueue-controller-manager" in says


@pytest.mark.parametrize(("kueue", "fix"), [(False, "kueue.enabled"), (True, "install Kueue")])
def test_a_queue_that_nobody_serves_keeps_the_job_out_and_is_said(kueue: bool, fix: str) -> None:
    options = msgspec.structs.replace(OPTIONS, kueue=kueue)
    outcome = reconcile(without_kueue(), options, NOW)
    assert actions_of(outcome, CreatePod) == []
    status, reason, says = condition(outcome)
    assert (status, reason) == ("False", "KueueNotUsed")
    assert fix in says
    assert "remove the label" in says


def without_kueue() -> Observed:
    return msgspec.structs.replace(running(pods=0), queueing=None)


def test_what_waits_is_kept_as_the_job_is(waiting: Workload) -> None:
    assert actions_of(reconcile(seen(waiting), WITH_KUEUE, NOW), Apply) == [
        each
        for each in actions_of(reconcile(seen(waiting), WITH_KUEUE, NOW), Apply)
        if each.manifest["kind"] != WORKLOAD
    ]
    larger = spec_of(document(**{**SPEC, "nodes": {"min": 2, "max": 8}}))
    made = as_made(reconcile(seen(waiting, spec=larger), WITH_KUEUE, NOW))
    assert [each.count for each in made.spec.pod_sets] == [8]


def test_its_priority_is_that_of_the_class_its_label_names() -> None:
    job = queued_job(priority="research")
    made = as_made(reconcile(seen(job=job, queueing={"workload_priorities": {"research": 7}}), WITH_KUEUE, NOW))
    assert made.spec.priority == 7


def test_a_priority_class_that_is_not_there_keeps_it_out_and_is_said() -> None:
    outcome = reconcile(seen(job=queued_job(priority="reserch")), WITH_KUEUE, NOW)
    assert [each for each in actions_of(outcome, Apply) if each.manifest["kind"] == WORKLOAD] == []
    status, reason, says = condition(outcome)
    assert (status, reason) == ("False", "PriorityClassMissing")
    assert "reserch" in says


def test_the_class_of_its_pods_counts_where_no_label_says_otherwise() -> None:
    spec = {**SPEC, "template": {"spec": {**SPEC["template"]["spec"], "priorityClassName": "high"}}}
    there = seen(spec=spec_of(document(**spec)), queueing={"priorities": {"high": 1000}})
    assert as_made(reconcile(there, WITH_KUEUE, NOW)).spec.priority == 1000
    by_default = seen(queueing={"priorities": {"": 5}})
    assert as_made(reconcile(by_default, WITH_KUEUE, NOW)).spec.priority == 5


def test_checks_that_are_open_are_named(waiting: Workload) -> None:
    checks = (AdmissionCheck("capacity", "Pending", "nodes are on the way"),)
    there = said(waiting, ("QuotaReserved", "True"), admission=admission(), admission_checks=checks)
    outcome = reconcile(seen(there), WITH_KUEUE, NOW)
    assert condition(outcome)[:2] == ("False", "AdmissionChecks")
    assert "capacity is Pending: nodes are on the way" in condition(outcome)[2]
    assert actions_of(outcome, CreatePod) == []


# Admitted.


def test_once_admitted_the_watchdog_is_told_how_many_nodes(waiting: Workload) -> None:
    outcome = reconcile(seen(admitted(waiting)), WITH_KUEUE, NOW)
    (submitted,) = actions_of(outcome, Submit)
    assert submitted.policy.admitted == 5
    assert condition(outcome)[:2] == ("True", "Admitted")


def test_its_pods_go_to_the_flavors_nodes(waiting: Workload) -> None:
    updates = (PodSetUpdate("main", {"a": "1"}, {"b": "2"}, {"pool-of": "request"}, ({"key": "c"},)),)
    there = admitted(waiting, admission_checks=(AdmissionCheck("capacity", "Ready", "", updates),))
    outcome = reconcile(running(there, pods=0), WITH_KUEUE, NOW)
    made = [each.manifest for each in actions_of(outcome, CreatePod)]
    assert len(made) == 5
    assert made[0]["spec"]["nodeSelector"] == {"pool": "h100", "pool-of": "request"}
    assert made[0]["spec"]["tolerations"] == [*H100.spec.tolerations, {"key": "c"}]
    assert made[0]["metadata"]["labels"]["a"] == "1"
    assert made[0]["metadata"]["annotations"]["b"] == "2"


def test_a_flavor_that_is_not_there_is_waited_for(waiting: Workload) -> None:
    there = said(waiting, *RESERVED, admission=admission(5, gpu="a100"))
    outcome = reconcile(running(there, pods=0), WITH_KUEUE, NOW)
    assert actions_of(outcome, CreatePod) == []
    assert condition(outcome)[:2] == ("False", "FlavorMissing")
    trains = reconcile(running(there), WITH_KUEUE, NOW)
    assert [each for each in actions_of(trains, Submit) if not each.policy.admitted] == [], "what runs goes on"
    assert actions_of(trains, DeletePod) == []


def test_no_more_pods_are_made_than_are_admitted(waiting: Workload) -> None:
    partly = admitted(waiting, count=3)
    outcome = reconcile(running(partly, pods=0, report=report(admitted=3)), WITH_KUEUE, NOW)
    assert len(actions_of(outcome, CreatePod)) == 3
    assert (
        "3 of 5 nodes are admitted by ClusterQueue cluster; to ask for the others, suspend"
        in condition(outcome)[2]
    )


def test_that_as_many_pods_run_as_it_needs_is_said_once(waiting: Workload) -> None:
    there = admitted(waiting)
    assert written(reconcile(running(there, pods=1), WITH_KUEUE, NOW))["PodsReady"] == ("False", "WaitForStart")
    assert written(reconcile(running(there, pods=2), WITH_KUEUE, NOW))["PodsReady"] == ("True", "Started")
    told = said(there, *RESERVED, ("PodsReady", "True", "Started"), admission=admission())
    assert actions_of(reconcile(running(told), WITH_KUEUE, NOW), ChangeWorkload) == []
    fewer = reconcile(running(told, pods=1), WITH_KUEUE, NOW)
    assert written(fewer)["PodsReady"] == ("False", "WaitForRecovery")


def test_what_is_needed_no_more_is_given_back_once_its_pods_are_gone(waiting: Workload) -> None:
    told = said(
        admitted(waiting),
        *RESERVED,
        ("PodsReady", "True", "Started"),
        admission=admission(),
    )
    smaller = spec_of(document(**{**SPEC, "nodes": {"min": 2, "max": 2, "spares": 1}}))
    fields: dict[str, Any] = {"spec": smaller, "report": report(admitted=5), "members": 2, "spares": 1}
    early = reconcile(running(told, pods=5, **fields), WITH_KUEUE, NOW)
    assert actions_of(early, ChangeWorkload) == []
    (change,) = actions_of(reconcile(running(told, pods=3, **fields), WITH_KUEUE, NOW), ChangeWorkload)
    assert change.status["reclaimablePods"] == [{"name": "main", "count": 2}]


def test_what_was_given_back_is_not_taken_again(waiting: Workload) -> None:
    there = admitted(waiting, reclaimable_pods=(Reclaimable("main", 2),))
    (submitted,) = actions_of(reconcile(running(there, pods=3), WITH_KUEUE, NOW), Submit)
    assert submitted.policy.admitted == 3


# Taken back.


def test_a_preempted_job_is_saved_before_a_pod_goes(waiting: Workload) -> None:
    outcome = reconcile(running(evicted(waiting)), WITH_KUEUE, NOW)
    (submitted,) = actions_of(outcome, Submit)
    assert submitted.policy.admitted == 0
    assert actions_of(outcome, DeletePod) == []
    assert actions_of(outcome, ChangeWorkload) == []
    assert condition(outcome)[:2] == ("False", "Preempted")
    assert "for a job of more worth" in condition(outcome)[2]


def test_its_quota_is_given_back_when_no_pod_is_left(waiting: Workload) -> None:
    stopped = reconcile(seen(evicted(waiting), pods=(pod(0, deleted=True),)), WITH_KUEUE, NOW)
    assert actions_of(stopped, ChangeWorkload) == []
    outcome = reconcile(seen(evicted(waiting)), WITH_KUEUE, NOW)
    told = written(outcome)
    assert (told["QuotaReserved"], told["Admitted"]) == (("False", "Pending"), ("False", "NoReservation"))
    assert (told["Requeued"], told["Evicted"]) == (("True", "Preempted"), ("True", "Preempted"))
    (change,) = actions_of(outcome, ChangeWorkload)
    assert change.status["admission"] is None


def test_when_kueue_says_how_long_it_waits_it_is_not_requeued_at_once(waiting: Workload) -> None:
    told = written(reconcile(seen(evicted(waiting, "PodsReadyTimeout")), WITH_KUEUE, NOW))
    assert told["Requeued"] == ("False", "PodsReadyTimeout")


@pytest.mark.parametrize(("is_away", "waits_s"), [(True, AWAY_S), (False, OVERDUE_S)])
def test_who_cannot_be_saved_goes_in_bounded_time(waiting: Workload, is_away: bool, waits_s: float) -> None:
    there = running(evicted(waiting), heard_age_s=waits_s - 1 if is_away else 0.0)
    early = reconcile(there, WITH_KUEUE, NOW + waits_s - 1)
    assert actions_of(early, DeletePod) == []
    assert early.requeue_after_s is not None
    assert early.requeue_after_s <= 1.0
    late = running(evicted(waiting), heard_age_s=waits_s if is_away else 0.0)
    assert len(actions_of(reconcile(late, WITH_KUEUE, NOW + waits_s), DeletePod)) == 5


@pytest.mark.parametrize(
    "fields",
    [
        {"spec": spec_of(document(nodes={"min": 0, "max": 0}))},
        {"report": report(generation=None, uid="", admitted=None), "job": None},
    ],
    ids=["refused", "forgotten"],
)
def test_an_evicted_job_that_is_left_alone_gives_its_nodes_back_all_the_same(
    waiting: Workload, fields: dict[str, Any]
) -> None:
    if "job" in fields:  # the watchdog's store was emptied
        fields = {**fields, "job": queued_job(round=3)}
    there = running(evicted(waiting), **fields)
    assert actions_of(reconcile(there, WITH_KUEUE, NOW), DeletePod) == []
    assert len(actions_of(reconcile(there, WITH_KUEUE, NOW + OVERDUE_S), DeletePod)) == 5


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({**SPEC, "template": TEMPLATE}, "other resources"),
        ({**SPEC, "nodes": {"min": 6, "max": 8}}, "spec.nodes.min is 6"),
    ],
)
def test_a_job_that_outgrows_what_was_admitted_is_saved_and_queued_anew(
    waiting: Workload, spec: dict[str, Any], why: str
) -> None:
    changed = spec_of(document(**spec))
    outcome = reconcile(running(admitted(waiting), spec=changed), WITH_KUEUE, NOW)
    assert [each for each in actions_of(outcome, Delete) if each.kind == WORKLOAD] == []
    assert actions_of(outcome, Submit)[0].policy.admitted == 0
    assert condition(outcome)[1] == "Outdated"
    assert why in condition(outcome)[2]
    empty = reconcile(seen(admitted(waiting), spec=changed), WITH_KUEUE, NOW)
    assert [each.kind for each in actions_of(empty, Delete)] == [WORKLOAD]


def test_another_queue_is_waited_for_anew(waiting: Workload) -> None:
    outcome = reconcile(running(admitted(waiting), job=queued_job(queue="other")), WITH_KUEUE, NOW)
    assert condition(outcome)[1] == "Outdated"


def test_a_new_image_is_no_matter_of_quota(waiting: Workload) -> None:
    container = {**SPEC["template"]["spec"]["containers"][0], "image": "registry.example/train:2"}
    changed = spec_of(document(**{**SPEC, "template": {"spec": {"containers": [container]}}}))
    assert condition(reconcile(running(admitted(waiting), spec=changed), WITH_KUEUE, NOW))[1] == "Admitted"


def test_how_to_queue_a_deactivated_job_again_is_said(waiting: Workload) -> None:
    off = msgspec.structs.replace(waiting, spec=msgspec.structs.replace(waiting.spec, active=False))
    for there in (off, evicted(off, "Deactivated")):
        _, reason, says = condition(reconcile(seen(there), WITH_KUEUE, NOW))
        assert reason == "Deactivated"
        assert "kubectl patch workload trainingjob-gpt -n research" in says


# Suspended, over, deleted, out of the queue.


def test_a_suspended_job_gives_its_quota_back_and_waits_in_no_queue(waiting: Workload) -> None:
    suspended = spec_of(document(**SPEC, suspend=True))
    there = running(admitted(waiting), spec=suspended)
    assert [each for each in actions_of(reconcile(there, WITH_KUEUE, NOW), Delete) if each.kind == WORKLOAD] == []
    empty = seen(admitted(waiting), spec=suspended, report=report(JobPhase.SUSPENDED, admitted=5))
    assert [each.kind for each in actions_of(reconcile(empty, WITH_KUEUE, NOW), Delete)] == [WORKLOAD]
    outcome = reconcile(seen(spec=suspended), WITH_KUEUE, NOW)
    assert [each for each in actions_of(outcome, Apply) if each.manifest["kind"] == WORKLOAD] == []
    assert condition(outcome)[:2] == ("False", "Suspended")


@pytest.mark.parametrize(("phase", "reason"), [(JobPhase.SUCCEEDED, "Succeeded"), (JobPhase.FAILED, "Failed")])
def test_a_job_that_is_over_frees_its_quota_when_its_pods_have_ended(
    waiting: Workload, phase: JobPhase, reason: str
) -> None:
    there = admitted(waiting)
    lingers = running(there, report=report(phase, admitted=5))
    assert actions_of(reconcile(lingers, WITH_KUEUE, NOW), ChangeWorkload) == []
    over = seen(there, report=report(phase, admitted=5))
    assert written(reconcile(over, WITH_KUEUE, NOW))["Finished"] == ("True", reason)
    told = said(there, *RESERVED, ("Finished", "True", reason), admission=admission())
    after = reconcile(seen(told, report=over.report), WITH_KUEUE, NOW)
    assert actions_of(after, ChangeWorkload) == []
    assert [each.reason for each in after.events if each.reason.startswith("Queue")] == []


def test_a_failed_job_that_is_restarted_waits_in_its_queue_anew(waiting: Workload) -> None:
    over = said(admitted(waiting), *RESERVED, ("Finished", "True", "Failed"), admission=admission())
    outcome = reconcile(seen(over, plan=plan(4, 1), report=report(JobPhase.PENDING, admitted=5)), WITH_KUEUE, NOW)
    assert actions_of(outcome, CreatePod) == []
    assert actions_of(outcome, Submit)[0].policy.admitted == 0
    assert [each.kind for each in actions_of(outcome, Delete)] == [WORKLOAD]


def test_without_its_label_it_trains_on_and_its_workload_goes(waiting: Workload) -> None:
    outcome = reconcile(running(admitted(waiting), job=job_object()), WITH_KUEUE, NOW)
    assert [each.kind for each in actions_of(outcome, Delete)] == [WORKLOAD]
    (submitted,) = actions_of(outcome, Submit)
    assert submitted.policy.admitted is None


def test_the_workload_of_a_deleted_job_goes_after_its_pods(waiting: Workload) -> None:
    job = job_object(deleted_at=NOW - 1)
    labelled = msgspec.structs.replace(
        job, metadata=msgspec.structs.replace(job.metadata, labels=queued_job().metadata.labels)
    )
    fields: dict[str, Any] = {"job": labelled, "report": report(JobPhase.SUSPENDED, admitted=5)}
    pods = running(admitted(waiting), **fields)
    going = actions_of(reconcile(pods, WITH_KUEUE, NOW), Delete)
    assert WORKLOAD not in [each.kind for each in going]
    gone = actions_of(reconcile(seen(admitted(waiting), **fields), WITH_KUEUE, NOW), Delete)
    assert WORKLOAD in [each.kind for each in gone]


# What people are told.


def test_people_are_told_when_it_waits_is_let_in_and_is_put_out(waiting: Workload) -> None:
    def told(there: Workload, before: Outcome | None) -> tuple[list[str], Outcome]:
        status = {} if before is None else before.status
        outcome = reconcile(seen(there, job=queued_job(**(status or {}))), WITH_KUEUE, NOW)
        return [each.reason for each in outcome.events if each.reason.startswith("Queue")], outcome

    first, outcome = told(said(waiting, ("QuotaReserved", "False", "Pending", "no quota")), None)
    assert first == ["QueueWaiting"]
    second, outcome = told(admitted(waiting), outcome)
    assert second == ["QueueAdmitted"]
    third, outcome = told(evicted(waiting), outcome)
    assert third == ["QueueEvicted"]
