import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from operator_builders import (
    NOW,
    OPTIONS,
    TEMPLATE,
    UID,
    after,
    document,
    ended_pod,
    incident,
    job_object,
    nodes,
    observed,
    owned,
    pending_pod,
    plan,
    pod,
    report,
    spec_of,
)
from pydantic import TypeAdapter

from holdfast.api.incident import IncidentState
from holdfast.api.jobstatus import Condition, TrainingJobStatus
from holdfast.api.plan import JobReport
from holdfast.api.status import Bill, Checkpoint, JobPhase, Membership
from holdfast.operator.decide.alterations import Alterations
from holdfast.operator.decide.belongings import budget_of, service_of
from holdfast.operator.decide.conditions import Truth, renew
from holdfast.operator.decide.observed import UNTRIED, Mode, Observed, Options, Outcome, Trial
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.kube.objects import Job, Pod, Waiting, seconds_of, text_of

OBSERVE = Options("w:1", "image", mode=Mode.OBSERVE)


def decide(seen: Observed, now: float = NOW, options: Options = OPTIONS) -> Outcome:
    return reconcile(seen, options, now)


def status_of(seen: Observed, now: float = NOW, options: Options = OPTIONS) -> Mapping[str, Any]:
    outcome = decide(seen, now, options)
    assert outcome.status is not None
    return outcome.status


def condition_of(seen: Observed, type_: str, options: Options = OPTIONS) -> tuple[str, str, str]:
    found = {each["type"]: each for each in status_of(seen, options=options)["conditions"]}[type_]
    return found["status"], found["reason"], found["message"]


def test_the_whole_status_is_what_the_watchdog_knows_and_the_pods_show() -> None:
    seen = observed(
        pods=(pod(0), pod(1), pod(2, deleted=True), ended_pod(3)),
        report=report(
            restarts=4,
            incidents_total=7,
            incidents=[incident(2), incident(1, IncidentState.RECOVERED), incident(0, actions=0)],
        ),
    )
    status = dict(status_of(seen))
    conditions = status.pop("conditions")
    assert status == {
        "phase": "Running",
        "observedGeneration": 1,
        "podsCreated": 4,
        "selector": "holdfast.dev/job=gpt",
        "round": 1,
        "members": {"wanted": 2, "ready": 2, "spares": 0, "pods": 3},
        "worldSize": 2,
        "step": 100,
        "restarts": 4,
        "lastCheckpoint": {
            "step": 90,
            "uri": "file:///runs/gpt/90",
            "verified": False,
            "time": text_of(NOW - 5),
        },
        "goodput": {"ettr": 0.988},
        "incidents": 7,
        "recentIncidents": [
            {
                "id": "incident-2",
                "kind": "Xid",
                "culprit": "node n1 rank 3",
                "cause": "XID 79",
                "action": "round 2",
                "state": "Open",
            },
            {
                "id": "incident-1",
                "kind": "Xid",
                "culprit": "node n1 rank 3",
                "cause": "XID 79",
                "action": "round 2",
                "state": "Recovered",
                "timeToRecoverSeconds": 4.568,
            },
            {
                "id": "incident-0",
                "kind": "Xid",
                "culprit": "node n1 rank 3",
                "cause": "XID 79",
                "action": "",
                "state": "Open",
            },
        ],
        "startedAt": text_of(NOW),
        "progressedAt": text_of(NOW),
    }
    known = {"Ready", "Progressing", "Degraded", "CheckpointHealthy", "CapacityAvailable", "WatchdogReachable"}
    known |= {"DivergenceHealable", "WithinBudget"}
    assert {each["type"] for each in conditions} == known | {
        "Suspended",
        "InvalidSpec",
        "PodsAltered",
        "UpToDate",
        "PolicyChecked",
        "Succeeded",
        "Admitted",
        "QueueAdmitted",
    }
    assert all(each["observedGeneration"] == 1 and each["reason"] for each in conditions)


def test_the_status_is_of_the_form_that_is_promised() -> None:
    for seen in (observed(), observed(plan=None, report=None), observed(report=report(JobPhase.SUCCEEDED))):
        read = TypeAdapter(TrainingJobStatus).validate_json(json.dumps(dict(status_of(seen))))
        assert read.selector == "holdfast.dev/job=gpt"


def test_the_last_ten_incidents_are_shown() -> None:
    many = [incident(number) for number in range(20, 0, -1)]
    shown = status_of(observed(report=report(incidents=many)))["recentIncidents"]
    assert [each["id"] for each in shown] == [f"incident-{number}" for number in range(20, 10, -1)]


def test_the_first_visit_sets_every_condition_though_nothing_is_known() -> None:
    seen = observed(job=job_object(finalizers=()), pods=(), plan=None, report=None)
    status = status_of(seen)
    truths = {each["type"]: each["status"] for each in status["conditions"]}
    assert truths == {
        "Ready": "Unknown",
        "Progressing": "Unknown",
        "Degraded": "Unknown",
        "CheckpointHealthy": "Unknown",
        "CapacityAvailable": "Unknown",
        "DivergenceHealable": "Unknown",
        "WithinBudget": "Unknown",
        "WatchdogReachable": "Unknown",
        "Suspended": "Unknown",
        "Admitted": "True",
        "QueueAdmitted": "Unknown",
        "InvalidSpec": "False",
        "PodsAltered": "Unknown",
        "UpToDate": "True",
        "PolicyChecked": "Unknown",
        "Succeeded": "Unknown",
    }
    assert (status["phase"], status["podsCreated"]) == ("Pending", 0)
    assert "observedGeneration" not in status


def test_what_the_watchdog_knew_stays_while_it_is_away() -> None:
    seen = observed(report=report(incidents=[incident()]))
    restarted = after(seen, plan=None, report=None, heard_age_s=60.0)
    status = status_of(restarted, NOW + 60)
    before = status_of(seen)
    kept = ("round", "worldSize", "step", "restarts", "lastCheckpoint", "startedAt")
    assert {key: status[key] for key in kept} == {key: before[key] for key in kept}
    found = {each["type"]: each for each in status["conditions"]}
    old = {each["type"]: each for each in before["conditions"]}
    assert found["CapacityAvailable"] == old["CapacityAvailable"]
    assert found["WatchdogReachable"]["status"] == "False"
    assert "what trains is not touched" in found["WatchdogReachable"]["message"]


DOUBTED = ("Ready", "Progressing", "Degraded", "CheckpointHealthy")
RESTARTED: dict[str, Any] = {"plan": None, "report": None}


@pytest.mark.parametrize("missing", [{}, RESTARTED], ids=["the same operator", "a restarted one"])
@pytest.mark.parametrize("phase", [JobPhase.RUNNING, JobPhase.STALLED])
def test_a_job_that_nobody_sees_is_not_told_of_as_well(missing: dict[str, Any], phase: JobPhase) -> None:
    seen = observed(report=report(phase))
    away = after(seen, heard_age_s=3600.0, **missing)
    status = status_of(away, NOW + 3600)
    assert (status["phase"], status["members"]) == ("Stalled", {"wanted": 2, "spares": 0, "pods": 2})
    assert "goodput" not in status
    TypeAdapter(TrainingJobStatus).validate_json(json.dumps(dict(status)))
    told = {each["type"]: (each["status"], each["reason"], each["message"]) for each in status["conditions"]}
    says = f"nobody has seen a step since {text_of(NOW)}: the watchdog is away"
    assert {told[type_] for type_ in DOUBTED} == {("Unknown", "Unseen", says)}
    later = decide(
        msgspec.structs.replace(away, job=job_object(status=status), **RESTARTED, heard_age_s=20.0), NOW + 7200
    )
    assert (later.status, later.events) == (None, ())
    still_away = decide(msgspec.structs.replace(away, job=job_object(status=status)), NOW + 7200)
    assert (still_away.status, still_away.events) == (None, ())


@pytest.mark.parametrize("missing", [{}, RESTARTED], ids=["the same operator", "a restarted one"])
def test_pods_are_counted_while_nobody_hears_the_watchdog(missing: dict[str, Any]) -> None:
    away = after(observed(), pods=(pod(0), ended_pod(1)), heard_age_s=3600.0, **missing)
    assert status_of(away, NOW + 3600)["members"] == {"wanted": 2, "spares": 0, "pods": 1}


def test_a_job_that_is_seen_again_is_told_of_as_before() -> None:
    away = after(observed(), heard_age_s=11.0)
    back = after(away, heard_age_s=0.0)
    status = status_of(back, NOW + 1)
    assert (status["phase"], status["members"]["ready"], status["goodput"]) == ("Running", 2, {"ettr": 0.988})
    truths = {each["type"]: each["status"] for each in status["conditions"]}
    assert (truths["Ready"], truths["CheckpointHealthy"]) == ("True", "True")


@pytest.mark.parametrize(
    ("seen", "phase", "ready"),
    [
        (report(JobPhase.FORMING), "Forming", "False"),
        (report(JobPhase.SUSPENDED), "Suspended", "False"),
        (report(JobPhase.SUCCEEDED), "Succeeded", "False"),
    ],
)
def test_a_job_that_did_not_train_stays_as_it_was_while_nobody_sees_it(
    seen: JobReport, phase: str, ready: str
) -> None:
    status = status_of(after(observed(report=seen), heard_age_s=3600.0), NOW + 3600)
    assert (status["phase"], status["members"]["ready"]) == (phase, 2)
    assert {each["type"]: each["status"] for each in status["conditions"]}["Ready"] == ready


def test_what_was_amiss_stands_while_nobody_sees_the_job() -> None:
    away = after(observed(report=report(incidents=[incident()])), heard_age_s=60.0)
    assert condition_of(away, "Degraded")[:2] == ("True", "IncidentOpen")


@pytest.mark.parametrize("missing", [{}, RESTARTED], ids=["the same operator", "a restarted one"])
@pytest.mark.parametrize(
    ("age_s", "phase", "expected"),
    [
        (60.0, JobPhase.RUNNING, ("Unknown", "Unseen")),
        (9000.0, JobPhase.RUNNING, ("False", "Stale")),
        (9000.0, JobPhase.SUSPENDED, ("True", "Committed")),
    ],
    ids=["in time when last seen", "late even then", "of a job that did not train"],
)
def test_nobody_knows_of_checkpoints_in_time_while_nobody_sees_the_job(
    missing: dict[str, Any], age_s: float, phase: JobPhase, expected: tuple[str, str]
) -> None:
    away = after(checkpointed("auto", age_s, phase), heard_age_s=11.0, **missing)
    assert condition_of(away, "CheckpointHealthy")[:2] == expected


def test_nobody_saw_a_step_since_the_last_one_that_the_watchdog_saw() -> None:
    away = after(observed(report=report(step_age_s=45.0)), heard_age_s=15.0)
    assert condition_of(away, "Ready")[2].startswith(f"nobody has seen a step since {text_of(NOW - 60)}")


def test_a_stalled_job_has_no_member_that_trains() -> None:
    stalled = observed(
        pods=(pod(0, runs_for_s=3600.0), pod(1, runs_for_s=3600.0), pod(2, runs_for_s=3600.0)),
        report=report(
            JobPhase.STALLED, reason="no step is seen", members=Membership(2, 0, 1, joined=2), ettr=None
        ),
    )
    status = status_of(stalled)
    assert status["members"] == {"wanted": 2, "ready": 0, "spares": 1, "pods": 3}
    assert "goodput" not in status
    assert condition_of(stalled, "Ready") == ("False", "Stalled", "no step is seen")
    # Nobody is missing: all of them joined.
    assert condition_of(stalled, "Degraded")[:2] == ("False", "AsWanted")
    assert condition_of(stalled, "Progressing")[:2] == ("False", "Stalled")
    lost = observed(report=report(JobPhase.STALLED, members=Membership(2, 0, 0, joined=1)))
    assert condition_of(lost, "Degraded") == ("True", "MembersMissing", "1 of 2 members are there")


def test_nothing_is_written_when_nothing_changed() -> None:
    settled = after(observed())
    outcome = decide(settled, NOW + 3600)
    assert (outcome.status, outcome.events) == (None, ())


MOVED = report(step=101, ettr=0.5, last_checkpoint=Checkpoint(100, "file:///runs/gpt/100", 1, 999.0))


def test_numbers_that_move_fast_are_written_every_thirty_seconds() -> None:
    moved = after(observed(), report=MOVED)
    early = decide(moved, NOW + 29)
    assert (early.status, early.requeue_after_s) == (None, pytest.approx(1.0))
    late = status_of(moved, NOW + 30)
    assert (late["step"], late["progressedAt"]) == (101, text_of(NOW + 30))


def test_numbers_that_move_fast_go_with_what_matters() -> None:
    moved = after(observed(), report=report(JobPhase.RECOVERING, step=101))
    status = status_of(moved, NOW + 1)
    assert (status["phase"], status["step"], status["progressedAt"]) == ("Recovering", 101, text_of(NOW + 1))


def test_what_matters_alone_does_not_put_off_the_numbers() -> None:
    changed = after(observed(), report=report(JobPhase.RECOVERING))
    assert status_of(changed, NOW + 20)["progressedAt"] == text_of(NOW)


def test_words_of_the_moment_are_no_reason_to_write() -> None:
    waiting = observed(
        pods=(pod(0), pending_pod(1, "0/5 nodes")), report=report(JobPhase.PENDING, reason="1 of 2")
    )
    chatting = after(
        waiting, pods=(pod(0), pending_pod(1, "0/6 nodes")), report=report(JobPhase.PENDING, reason="1 of 2")
    )
    assert decide(chatting, NOW + 10).status is None
    assert "0/6 nodes" in str(status_of(chatting, NOW + 30))


def test_a_clock_that_jumped_back_does_not_silence_the_numbers() -> None:
    moved = after(observed(), report=MOVED)
    assert status_of(moved, NOW - 7200)["step"] == 101


def test_a_status_that_somebody_removed_or_broke_is_written_again() -> None:
    for text in (b"{}", b'{"conditions": 3}', b'{"phase": "Running", "progressedAt": 7}', b"null"):
        status = status_of(observed(job=Job(job_object().metadata, status=msgspec.Raw(text))))
        assert (status["phase"], status["podsCreated"]) == ("Running", 2)


def test_a_checkpoints_time_is_reckoned_once() -> None:
    later = after(observed(), report=report(now=1030.0, step=500))
    assert status_of(later, NOW + 33)["lastCheckpoint"]["time"] == text_of(NOW - 5)


def test_a_number_that_is_not_known_is_left_out() -> None:
    status = status_of(
        observed(report=report(JobPhase.PENDING, step=None, ettr=None, round=None, last_checkpoint=None))
    )
    assert {"step", "goodput", "round", "lastCheckpoint", "startedAt"} & set(status) == set()


def test_the_generation_counts_as_observed_once_it_is_taken() -> None:
    changed = observed(job=job_object(generation=2), spec=spec_of(document(generation=2)))
    assert "observedGeneration" not in status_of(changed)
    taken = observed(
        job=job_object(generation=2), spec=spec_of(document(generation=2)), report=report(generation=2)
    )
    assert status_of(taken)["observedGeneration"] == 2


READY: list[tuple[str, Observed, tuple[str, str]]] = [
    ("a full round", observed(), ("True", "Running")),
    ("a shrunk round", observed(report=report(members=Membership(4, 2, 0))), ("False", "MembersMissing")),
    ("forming", observed(report=report(JobPhase.FORMING)), ("False", "Forming")),
]


@pytest.mark.parametrize(("seen", "expected"), [(s, e) for _, s, e in READY], ids=[name for name, _, _ in READY])
def test_a_job_is_ready_with_a_full_round(seen: Observed, expected: tuple[str, str]) -> None:
    assert condition_of(seen, "Ready")[:2] == expected


DROPPED = Alterations(dropped=("spec.resourceClaims",))


@pytest.mark.parametrize(
    ("altered", "expected"),
    [
        (None, ("Unknown", "NotTried")),
        (Alterations(), ("False", "AsAsked")),
        (DROPPED, ("True", "Dropped")),
        (Alterations(rewritten=("spec.containers[0].image ('b' in place of 'a')",)), ("True", "Rewritten")),
    ],
    ids=["nobody knows", "as asked", "dropped", "rewritten"],
)
def test_what_became_of_a_pod_that_the_api_server_took_is_said(
    altered: Alterations | None, expected: tuple[str, str]
) -> None:
    assert condition_of(observed(trial=Trial(altered=altered)), "PodsAltered")[:2] == expected


def test_a_job_whose_pods_lose_a_field_runs_all_the_same_and_is_told_which() -> None:
    seen = observed(trial=Trial(altered=DROPPED))
    assert decide(seen).actions == decide(observed()).actions
    assert "dropped: spec.resourceClaims; a feature gate" in condition_of(seen, "PodsAltered")[2]
    assert (condition_of(seen, "InvalidSpec")[0], status_of(seen)["phase"]) == ("False", "Running")


def test_progress_is_on_the_way_to_a_round() -> None:
    assert condition_of(observed(), "Progressing")[:2] == ("False", "Running")
    forming = observed(report=report(JobPhase.FORMING, reason="3 of 4 members joined"))
    assert condition_of(forming, "Progressing") == ("True", "Forming", "3 of 4 members joined")


RECOVERED_LATER = incident(1, IncidentState.PAGED, round=0)
DEGRADED: list[tuple[str, Observed, tuple[str, str]]] = [
    ("a full round", observed(), ("False", "AsWanted")),
    ("a shrunk round", observed(report=report(members=Membership(4, 2, 0))), ("True", "MembersMissing")),
    (
        "no round yet",
        observed(report=report(JobPhase.FORMING, members=Membership(4, 2, 0))),
        ("False", "AsWanted"),
    ),
    ("an open incident", observed(report=report(incidents=[incident()])), ("True", "IncidentOpen")),
    ("an incident not shown", observed(report=report(incidents_open=1)), ("True", "IncidentOpen")),
    (
        "an incident over",
        observed(report=report(incidents=[incident(1, IncidentState.RECOVERED)])),
        ("False", "AsWanted"),
    ),
    ("a page", observed(report=report(incidents=[incident(1, IncidentState.PAGED)])), ("True", "Paged")),
    ("a page of before", observed(report=report(incidents=[RECOVERED_LATER])), ("False", "AsWanted")),
    (
        "a page and no training",
        observed(report=report(JobPhase.RECOVERING, incidents=[RECOVERED_LATER])),
        ("True", "Paged"),
    ),
    ("suspended", observed(report=report(JobPhase.SUSPENDED)), ("False", "Suspended")),
    ("failed", observed(report=report(JobPhase.FAILED)), ("False", "Failed")),
]


@pytest.mark.parametrize(
    ("seen", "expected"), [(s, e) for _, s, e in DEGRADED], ids=[name for name, _, _ in DEGRADED]
)
def test_a_job_is_degraded_with_less_than_it_should_have(seen: Observed, expected: tuple[str, str]) -> None:
    assert condition_of(seen, "Degraded")[:2] == expected


def test_a_crash_loop_shows_the_last_words() -> None:
    first = observed(pods=(pod(0), ended_pod(1, ran_s=2, ended_at=NOW - 5)))
    assert condition_of(first, "Degraded")[1] == "AsWanted"
    assert condition_of(first, "Progressing")[1] == "BackingOff"
    second = observed(pods=(pod(0), ended_pod(1, ran_s=2, ended_at=NOW - 5, quick_ends=1)))
    truth, reason, says = condition_of(second, "Degraded")
    assert (truth, reason) == ("True", "CrashLoop")
    words = "gpt-1 ended 2 s after its start: exit code 1: no module named x; 2 in a row, the next one starts at"
    assert says == f"{words} {text_of(NOW + 15)}"


def checkpointed(interval: str, age_s: float, phase: JobPhase = JobPhase.RUNNING) -> Observed:
    newest = Checkpoint(90, "file:///runs/gpt/90", 1, 1000.0 - age_s)
    return observed(
        spec=spec_of(document(checkpoint={"interval": interval})), report=report(phase, last_checkpoint=newest)
    )


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (observed(report=report(last_checkpoint=None)), ("Unknown", "NoneYet")),
        (checkpointed("auto", 7200.0), ("True", "Committed")),
        (checkpointed("auto", 7201.0), ("False", "Stale")),
        (checkpointed("500steps", 7200.0), ("True", "Committed")),
        (checkpointed("500steps", 7201.0), ("False", "Stale")),
        (checkpointed("auto", 99_999.0, JobPhase.RECOVERING), ("True", "Committed")),
        (checkpointed("10m", 1800.0), ("True", "Committed")),
        (checkpointed("10m", 1801.0), ("False", "Stale")),
        (checkpointed("1s", 59.0), ("True", "Committed")),
        (checkpointed("1s", 61.0), ("False", "Stale")),
        (checkpointed("1s", 61.0, JobPhase.RECOVERING), ("True", "Committed")),
        (observed(spec=spec_of(document(nodes=4))), ("True", "Committed")),
    ],
)
def test_checkpoints_are_healthy_while_they_keep_coming(seen: Observed, expected: tuple[str, str]) -> None:
    assert condition_of(seen, "CheckpointHealthy")[:2] == expected


def test_capacity_is_missing_in_the_schedulers_words() -> None:
    short = observed(pods=(pod(0), pending_pod(1, "0/5 nodes are available"), pending_pod(2)), plan=plan(3))
    says = "1 of 3 pods find no place: Unschedulable: 0/5 nodes are available"
    assert condition_of(short, "CapacityAvailable") == ("False", "Unschedulable", says)
    assert condition_of(observed(), "CapacityAvailable")[0] == "True"
    assert condition_of(observed(pods=(pod(0), pending_pod(1))), "CapacityAvailable")[0] == "Unknown"
    assert condition_of(observed(pods=()), "CapacityAvailable")[0] == "Unknown"


def starting(ordinal: int, reason: str, *, bound_s_ago: float, message: str = "") -> Pod:
    bound = Condition("PodScheduled", "True", last_transition_time=text_of(NOW - bound_s_ago))
    return pod(ordinal, phase="Pending", waiting=Waiting(reason, message), conditions=[bound])


def test_a_member_that_cannot_start_is_told_of_at_once_where_the_kubelet_says_why() -> None:
    held_up = observed(pods=(pod(0), starting(1, "ErrImagePull", bound_s_ago=1.0, message="no such image")))
    assert condition_of(held_up, "Progressing") == (
        "True",
        "MemberCannotStart",
        "gpt-1 on n1: container trainer: ErrImagePull: no such image",
    )


def test_a_member_that_does_not_start_is_told_of_after_a_while_though_nothing_happens() -> None:
    on_its_way = observed(pods=(pod(0), starting(1, "ContainerCreating", bound_s_ago=5.0)))
    assert condition_of(on_its_way, "Progressing")[1] != "MemberCannotStart"
    look_again_s = decide(on_its_way).requeue_after_s
    assert look_again_s is not None
    assert 15.0 < look_again_s < 16.0
    late = observed(pods=(pod(0), starting(1, "ContainerCreating", bound_s_ago=20.0)))
    truth, reason, says = condition_of(late, "Progressing")
    assert (truth, reason) == ("True", "MemberCannotStart")
    assert says.endswith("kubectl describe pod gpt-1")


def joining(*joined: int, runs_for_s: float = 20.0, phase: JobPhase = JobPhase.PENDING, **fields: Any) -> Observed:
    """Two pods that run; `joined` are ready and spare members."""
    ready, spares = joined
    pods = (pod(0, runs_for_s=3600.0), pod(1, runs_for_s=runs_for_s))
    return observed(pods=pods, report=report(phase, members=Membership(2, ready, spares)), **fields)


def test_pods_that_run_and_do_not_join_are_named() -> None:
    truth, reason, says = condition_of(joining(0, 0), "Progressing")
    assert (truth, reason) == ("True", "MemberCannotStart")
    told = "{0} on {1}: runs and has not joined, or is being tested; look at: kubectl logs {0}"
    assert says == "; ".join((told.format("gpt-0", "n0"), told.format("gpt-1", "n1")))


@pytest.mark.parametrize("phase", [JobPhase.PENDING, JobPhase.FORMING, JobPhase.RECOVERING, JobPhase.RUNNING])
def test_of_pods_of_which_one_did_not_join_it_is_said_that_it_is_one_of_them(phase: JobPhase) -> None:
    truth, reason, says = condition_of(joining(1, 0, phase=phase), "Progressing")
    assert (truth, reason) == ("True", "MemberCannotStart")
    assert says.startswith("1 of the pods that run has not joined")
    assert says.endswith("kubectl logs POD, where POD is one of gpt-0, gpt-1")


@pytest.mark.parametrize(
    "seen",
    [
        joining(2, 0),
        joining(1, 1),
        joining(1, 0, runs_for_s=19.0),
        joining(0, 0, phase=JobPhase.PREFLIGHT),
        joining(0, 0, phase=JobPhase.RUNNING),
        joining(0, 0, phase=JobPhase.FAILED),
        joining(0, 0, heard_age_s=1.0),
        observed(report=report(JobPhase.PENDING, members=Membership(2, 0, 0))),
    ],
    ids=[
        "joined",
        "spare",
        "just begun",
        "in tests",
        "a new leader",
        "over",
        "watchdog away",
        "nobody knows since when",
    ],
)
def test_nobody_is_said_to_be_late_who_is_there_or_on_its_way(seen: Observed) -> None:
    assert condition_of(seen, "Progressing")[1] != "MemberCannotStart"


def test_a_pod_that_just_began_is_looked_at_again_when_it_should_have_joined() -> None:
    again_s = decide(joining(1, 0, runs_for_s=5.0)).requeue_after_s
    assert again_s is not None
    assert 15.0 < again_s < 16.0
    assert decide(after(joining(2, 0, runs_for_s=5.0, spec=spec_of(document(nodes=4))))).requeue_after_s is None


def test_the_watchdog_is_missed_after_ten_seconds_or_when_it_says_so_itself() -> None:
    assert condition_of(observed(heard_age_s=10.0), "WatchdogReachable")[0] == "True"
    assert condition_of(observed(heard_age_s=10.1), "WatchdogReachable")[:2] == ("False", "Away")
    troubled = condition_of(observed(report=report(trouble="the store is away")), "WatchdogReachable")
    assert troubled == (
        "False",
        "Trouble",
        "the store is away; what trains is not touched, nobody sees its steps, and faults wait",
    )


def test_a_job_is_suspended_when_it_holds_nothing() -> None:
    asked = spec_of(document(suspend=True))
    assert condition_of(observed(), "Suspended")[:2] == ("False", "NotSuspended")
    assert condition_of(observed(spec=asked), "Suspended")[:2] == ("False", "Suspending")
    assert condition_of(observed(report=report(JobPhase.SUSPENDED), spec=asked), "Suspended")[0] == "True"
    assert condition_of(observed(report=report(JobPhase.FAILED), spec=asked), "Suspended")[1] == "NotSuspended"


def test_a_template_that_the_api_server_refuses_is_told_of_in_its_words() -> None:
    refused = observed(trial=Trial('pods "gpt-0" is forbidden: exceeded quota'), plan=plan(4))
    outcome = decide(refused)
    assert "CreatePod" not in str(outcome.actions)
    truth, reason, says = condition_of(refused, "InvalidSpec")
    assert (truth, reason) == ("True", "TemplateRefused")
    assert says.startswith("spec.template: the API server refuses a pod of it: pods")
    assert [each.reason for each in outcome.events if each.warning] == ["TemplateRefused"]
    assert condition_of(after(refused, trial=UNTRIED), "InvalidSpec")[0] == "False"


def test_success_is_unknown_until_the_end() -> None:
    assert condition_of(observed(), "Succeeded")[:2] == ("Unknown", "NotFinished")
    assert condition_of(observed(report=report(JobPhase.SUCCEEDED)), "Succeeded")[:2] == ("True", "Succeeded")
    failed = observed(report=report(JobPhase.FAILED, reason="no restarts left"))
    assert condition_of(failed, "Succeeded") == ("False", "Failed", "no restarts left")
    assert condition_of(after(failed, report=None, heard_age_s=20.0), "Succeeded")[2] == "no restarts left"
    bare = job_object(status={"phase": "Failed", "finishedAt": text_of(NOW)})
    assert condition_of(observed(job=bare, report=None), "Succeeded") == ("False", "Failed", "")


def test_a_transition_time_changes_with_the_truth_and_not_with_the_words() -> None:
    before = [Condition("Ready", "True", "Running", "2 of 2", text_of(NOW - 100))]
    said = renew(before, [Condition("Ready", Truth.TRUE, "Running", "3 of 3")], 2, NOW)
    assert (said[0].message, said[0].last_transition_time) == ("3 of 3", text_of(NOW - 100))
    turned = renew(before, [Condition("Ready", Truth.FALSE, "Recovering")], 2, NOW)
    assert turned[0].last_transition_time == text_of(NOW)
    undated = renew([Condition("Ready", "True")], [Condition("Ready", Truth.TRUE, "Running")], None, NOW)
    assert undated[0].last_transition_time == text_of(NOW)
    assert undated[0].observed_generation is None


def test_a_long_message_is_cut() -> None:
    (cut,) = renew((), [Condition("Ready", Truth.TRUE, "Running", "x" * 9000)], 1, NOW)
    assert len(cut.message) == 2000


def test_an_operator_that_observes_writes_the_status_and_does_nothing() -> None:
    seen = observed(job=job_object(finalizers=()), plan=plan(4, cordon=()), pods=(pod(0),))
    outcome = decide(seen, options=OBSERVE)
    assert (outcome.actions, outcome.events) == ((), ())
    assert outcome.reason.startswith("observing only; would do")
    truth, _, says = condition_of(seen, "Observing", OBSERVE)
    assert (truth, says) == ("True", "nothing is changed; would do: Apply x2; CreatePod x3")
    assert status_of(seen, options=OBSERVE)["podsCreated"] == 1
    assert "Observing" not in str(status_of(seen)["conditions"])


@pytest.mark.parametrize(
    ("spec", "would"),
    [
        ({"nodes": {"min": 1, "max": 2, "spares": 1}}, "Apply x2; CreatePod x3; Submit x1"),
        ({"suspend": True}, "Apply x1; Submit x1"),
    ],
)
def test_an_operator_that_observes_a_job_nobody_told_the_watchdog_of_decides_by_its_spec(
    spec: dict[str, Any], would: str
) -> None:
    unknown = report(generation=None, uid="")
    seen = observed(spec=spec_of(document(**spec)), plan=None, report=unknown, pods=())
    assert condition_of(seen, "Observing", OBSERVE)[2] == f"nothing is changed; would do: {would}"
    assert status_of(seen, options=OBSERVE)["podsCreated"] == 0
    away = msgspec.structs.replace(seen, report=None, heard_age_s=60.0)
    assert condition_of(away, "Observing", OBSERVE)[2] == "nothing is changed; would do: nothing"
    assert {type(each).__name__ for each in decide(seen).actions} == {"Submit"}


def test_an_operator_that_observes_a_settled_job_would_do_nothing() -> None:
    seen = observed(spec=spec_of(document(nodes=4)))
    assert condition_of(seen, "Observing", OBSERVE)[2] == "nothing is changed; would do: nothing"


@pytest.mark.parametrize("text", ["", None, "yesterday"])
def test_what_is_no_timestamp_is_no_time(text: str | None) -> None:
    assert seconds_of(text) is None


def test_timestamps_are_read_back_as_written_and_without_a_zone_are_utc() -> None:
    assert seconds_of(text_of(NOW + 0.9)) == NOW
    assert seconds_of("2027-01-15T08:00:00") == seconds_of("2027-01-15T08:00:00Z") == NOW
    assert seconds_of("2027-01-15T09:00:00.123456+01:00") == pytest.approx(NOW + 0.123456)


def test_a_report_of_an_earlier_job_of_the_name_is_not_this_jobs() -> None:
    status = status_of(observed(report=report(uid=f"{UID}-before")))
    assert "round" not in status


def test_twelve_thousand_members_at_rest_ask_for_nothing() -> None:
    count = 12_500
    names = [f"n{number}" for number in range(count)]
    seen = observed(
        pods=tuple(pod(number) for number in range(count)),
        nodes=nodes(*names),
        plan=plan(count),
        report=report(members=Membership(count, count, 0)),
    )
    metadata = seen.job.metadata
    belongings = {
        "services": (owned(service_of(metadata)),),
        "budgets": (owned(budget_of(metadata, TEMPLATE)),),
    }
    settled = decide(after(seen, **belongings), NOW + 60)
    assert {type(action).__name__ for action in settled.actions} == {"Tell"}
    assert (settled.status, settled.events, settled.requeue_after_s) == (None, (), None)


@pytest.mark.parametrize(("verified_step", "verified"), [(None, False), (89, False), (90, True), (100, True)])
def test_a_checkpoint_is_verified_once_replicas_agreed_at_its_step_or_later(
    verified_step: int | None, verified: bool
) -> None:
    shown = status_of(observed(report=report(verified_step=verified_step)))["lastCheckpoint"]
    assert shown["verified"] is verified


@pytest.mark.parametrize("heard_age_s", [0.0, 11.0])
def test_an_operator_that_has_just_started_writes_nothing_before_it_has_heard_the_watchdog(
    heard_age_s: float,
) -> None:
    started = after(observed(heard_age_s=heard_age_s), report=None, plan=None, heard_age_s=1.0)
    assert decide(started).status is None


def test_of_a_watchdog_that_was_never_heard_nothing_is_known() -> None:
    found = condition_of(observed(report=None, plan=None, heard_age_s=1.0), "WatchdogReachable")
    assert found[:2] == ("Unknown", "NotHeard")


@pytest.mark.parametrize("options", [OPTIONS, OBSERVE])
@pytest.mark.parametrize("heard", [observed(), observed(report=None, plan=None)])
def test_a_watchdog_that_goes_silent_is_looked_at_again_when_it_will_be_missed(
    heard: Observed, options: Options
) -> None:
    away = after(heard, heard_age_s=1.0)
    again_s = decide(away, options=options).requeue_after_s
    assert again_s is not None
    later = msgspec.structs.replace(away, heard_age_s=1.0 + again_s)
    assert condition_of(later, "WatchdogReachable", options)[:2] == ("False", "Away")
    assert 9.0 <= again_s < 10.0
    assert decide(after(later), options=options).requeue_after_s is None


@pytest.mark.parametrize(
    ("bill", "expected"),
    [
        (None, ("True", "NoBudget")),
        (Bill(1.0, 4.0, "EUR"), ("True", "NoBudget")),
        (Bill(1.0, 4.0, "EUR", 10.0, 0.5), ("True", "WithinBudget")),
        (Bill(1.0, 5.0, "EUR", 10.0, 0.5), ("True", "BudgetNearlySpent")),
        (Bill(1.0, 10.0, "EUR", 10.0, 0.5), ("False", "BudgetSpent")),
    ],
)
def test_a_job_that_has_spent_its_budget_says_so_and_goes_on(bill: Bill | None, expected: tuple[str, str]) -> None:
    assert condition_of(observed(report=report(bill=bill)), "WithinBudget")[:2] == expected


@pytest.mark.parametrize(
    ("loss", "status", "expected"),
    [
        (None, {}, ("Unknown", "NotAsked")),
        ({}, {"step": None}, ("Unknown", "NoStepYet")),
        ({}, {}, ("True", "ScriptCan")),
        ({}, {"unfollowed": "the script cannot pass over batches"}, ("False", "ScriptCannot")),
    ],
)
def test_a_script_that_cannot_do_what_a_divergence_asks_for_is_told_of_while_all_is_well(
    loss: dict[str, Any] | None, status: dict[str, Any], expected: tuple[str, str]
) -> None:
    fields = {} if loss is None else {"faultPolicy": {"loss": loss}}
    spec = spec_of(document(**fields))
    said = condition_of(observed(spec=spec, report=report(**status)), "DivergenceHealable")
    assert said[:2] == expected
