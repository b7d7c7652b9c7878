from typing import Any

from operator_builders import (
    NOW,
    OPTIONS,
    after,
    document,
    ended_pod,
    incident,
    job_object,
    node,
    nodes,
    observed,
    order,
    plan,
    pod,
    report,
    spec_of,
)

from holdfast.api.incident import IncidentState
from holdfast.api.plan import NodeOrder
from holdfast.api.status import JobPhase
from holdfast.operator.decide.alterations import Alterations
from holdfast.operator.decide.observed import Observed, Trial
from holdfast.operator.decide.reconcile import reconcile


def said(seen: Observed, now: float = NOW) -> list[tuple[str, str]]:
    return [(each.reason, each.message) for each in reconcile(seen, OPTIONS, now).events]


def reasons(seen: Observed, now: float = NOW) -> list[str]:
    return [reason for reason, _ in said(seen, now)]


FORMING = observed(report=report(JobPhase.FORMING))


def test_taking_running_and_finishing_are_told_once_each() -> None:
    assert said(FORMING) == [("JobAccepted", "the watchdog took the job; it wants 2 members")]
    running = after(FORMING, report=report())
    assert said(running) == [("Running", "round 1, world size 2")]
    assert said(after(running)) == []
    again = after(running, report=report(round=2, world_size=4))
    assert said(again) == [("Running", "round 2, world size 4")]
    done = after(again, report=report(JobPhase.SUCCEEDED, reason="every rank finished"))
    assert said(done) == [("Succeeded", "every rank finished")]
    assert said(after(done)) == []


def test_failing_is_a_warning_with_its_reason() -> None:
    failed = after(observed(), report=report(JobPhase.FAILED, reason="no restarts left"))
    (event,) = reconcile(failed, OPTIONS, NOW).events
    assert (event.reason, event.message, event.warning) == ("Failed", "no restarts left", True)


def test_suspending_and_resuming_are_told_once_each() -> None:
    suspended = after(
        observed(), report=report(JobPhase.SUSPENDED, reason="suspended; step 90 is saved"), plan=plan(0)
    )
    assert said(suspended) == [("Suspended", "suspended; step 90 is saved")]
    assert said(after(suspended)) == []
    resumed = after(suspended, report=report(JobPhase.RECOVERING, reason="resumed on request"), plan=plan(2))
    assert ("Resumed", "resumed on request") in said(resumed)
    ended = after(suspended, report=report(JobPhase.FAILED))
    assert "Resumed" not in reasons(ended)


def test_an_incidents_life_is_told_step_by_step() -> None:
    opened = after(observed(), report=report(incidents=[incident(1)]))
    assert said(opened) == [("IncidentOpened", "incident-1: Xid on node n1 rank 3: XID 79")]
    assert said(after(opened)) == []
    healed = after(opened, report=report(incidents=[incident(1, IncidentState.RECOVERED)]))
    assert said(healed) == [
        ("IncidentRecovered", "incident-1: Xid on node n1 rank 3: round 2; recovered in 4.6 s")
    ]
    paged = after(opened, report=report(incidents=[incident(1, IncidentState.PAGED)]))
    assert said(paged) == [("IncidentPaged", "incident-1: Xid on node n1 rank 3: a human is needed; XID 79")]


def test_an_incident_that_came_and_went_between_two_looks_is_told_whole_and_the_oldest_first() -> None:
    both = [incident(2), incident(1, IncidentState.RECOVERED, actions=0, recovered_at=None)]
    told = said(after(observed(), report=report(incidents=both)))
    assert [reason for reason, _ in told] == ["IncidentOpened", "IncidentRecovered", "IncidentOpened"]
    assert told[1][1].endswith("nothing had to be done")


def test_a_watchdog_that_goes_and_comes_back_is_told_of_once_each() -> None:
    away = after(observed(), heard_age_s=11.0)
    assert reasons(away) == ["WatchdogUnreachable"]
    assert reasons(after(away, heard_age_s=99.0)) == []
    assert reasons(after(away, heard_age_s=0.0)) == ["WatchdogReachable"]


def test_a_refused_spec_is_told_of_once_per_text() -> None:
    refused = after(observed(), spec=spec_of(document(nodes=4)))
    assert reasons(refused) == ["InvalidSpec"]
    assert reasons(after(refused)) == []
    assert reasons(after(refused, spec=spec_of(document(nodes=5)))) == ["InvalidSpec"]
    assert reasons(after(refused, spec=spec_of(document()))) == []


def test_a_field_that_pods_lose_is_told_of_once_per_text() -> None:
    seen = observed(trial=Trial(altered=Alterations(dropped=("spec.resourceClaims",))))
    (event,) = [each for each in reconcile(seen, OPTIONS, NOW).events if each.reason == "PodsAltered"]
    assert event.warning
    assert event.message.startswith("of a pod of spec.template the API server has dropped: spec.resourceClaims; ")
    assert reasons(after(seen), NOW + 3600) == []
    rewritten = after(seen, trial=Trial(altered=Alterations(rewritten=("spec.hostPID (True in place of False)",))))
    assert [(each.reason, each.warning) for each in reconcile(rewritten, OPTIONS, NOW).events] == [
        ("PodsAltered", False)
    ]
    assert reasons(after(seen, trial=Trial(altered=Alterations()))) == []


def test_a_replacement_names_who_it_stands_in_for() -> None:
    there = {**nodes(), "n2": node("n2", unschedulable=True)}
    pods = (pod(0), ended_pod(1), pod(2), pod(3), pod(4, deleted=True))
    seen = observed(pods=pods, nodes=there, plan=plan(5, release=("gpt-3",)))
    told = dict(said(seen))["MemberReplaced"]
    assert told == (
        "gpt-5, gpt-6, gpt-7, gpt-8 in place of gpt-2 (its node is to be left: n2: somebody cordoned it), "
        "gpt-3 (released), "
        "gpt-4 (the pod is being deleted), gpt-1 (exit code 1: no module named x)"
    )


def test_a_replacement_says_what_is_held_against_the_node_that_is_left() -> None:
    told = NodeOrder("n1", "other jobs' evidence: GPU lost in research/other")
    for release in ((), ("gpt-1",)):
        event = dict(said(observed(plan=plan(avoid=(told,), release=release))))["MemberReplaced"]
        assert event.endswith(": n1: other jobs' evidence: GPU lost in research/other)")


def test_many_names_are_counted_instead_of_listed() -> None:
    pods = tuple(pod(number, deleted=True) for number in range(9))
    told = dict(said(observed(pods=pods, plan=plan(9))))["MemberReplaced"]
    assert told.startswith("gpt-9, gpt-10, gpt-11, gpt-12, gpt-13 and 4 more in place of")


def test_growing_replaces_nobody() -> None:
    assert "MemberReplaced" not in reasons(observed(plan=plan(4)))
    kept_for_its_logs = ended_pod(0, ended_at=NOW - 60)
    replaced = (kept_for_its_logs, pod(1), pod(2, created_at=NOW - 50))
    assert "MemberReplaced" not in reasons(observed(pods=replaced, plan=plan(3)))
    not_yet_replaced = (kept_for_its_logs, pod(1), pod(2, created_at=NOW - 70))
    assert "MemberReplaced" in reasons(observed(pods=not_yet_replaced, plan=plan(3)))


def test_nothing_is_said_of_a_job_the_watchdog_does_not_know() -> None:
    assert said(observed(plan=None, report=None, pods=())) == []


def test_an_event_fits_the_api_servers_limit() -> None:
    long = order("n5", "x" * 5000)
    (event,) = [
        e
        for e in reconcile(observed(plan=plan(cordon=(long,))), OPTIONS, NOW).events
        if e.reason == "NodeCordoned"
    ]
    assert len(event.message) == 1000


def test_a_restarted_operator_repeats_nothing() -> None:
    fields: dict[str, Any] = {"report": report(incidents=[incident(1)])}
    settled = after(observed(**fields))
    assert said(settled, NOW + 500) == []
    forgetful = observed(**fields, job=job_object())
    assert reasons(forgetful) == ["JobAccepted", "Running", "IncidentOpened"]
