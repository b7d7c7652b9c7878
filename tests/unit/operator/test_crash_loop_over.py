"""A crash loop is told of while it lasts, and no time in the past."""

from typing import Any

import msgspec
import pytest
from operator_builders import (
    NOW,
    OPTIONS,
    after,
    ended_pod,
    job_object,
    observed,
    pod,
    report,
    spec_of,
)

from holdfast.api.jobstatus import Condition
from holdfast.api.status import JobPhase, Membership
from holdfast.operator.decide.observed import Observed
from holdfast.operator.decide.pods import LONGEST_WAIT_S, QUICK_S
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.kube.objects import text_of

ENDED = NOW - 5
DUE = ENDED + 20
SAYS = "gpt-1 ended 3 s after its start: exit code 1: no module named x; 2 in a row"
SHORT = report(JobPhase.RECOVERING, members=Membership(wanted=2, ready=1, spares=0))


def looping(**fields: Any) -> Observed:
    crashed = ended_pod(1, ran_s=3.0, ended_at=ENDED, quick_ends=1)
    return observed(**{"pods": (pod(0), crashed), "report": SHORT, **fields})


def degraded(seen: Observed, now: float, type_: str = "Degraded") -> tuple[str, str, str]:
    status = reconcile(seen, OPTIONS, now).status
    found = Condition(type_)
    if status is not None:
        found = next(Condition(**_fields(each)) for each in status["conditions"] if each["type"] == type_)
    else:
        found = seen.job.recorded().condition(type_) or found
    return found.status, found.reason, found.message


def _fields(written: dict[str, Any]) -> dict[str, str]:
    return {key: written[key] for key in ("type", "status", "reason", "message") if key in written}


def test_the_time_of_the_next_start_is_told_until_it_is_there() -> None:
    assert degraded(looping(), NOW) == ("True", "CrashLoop", f"{SAYS}, the next one starts at {text_of(DUE)}")
    assert degraded(after(looping()), DUE) == ("True", "CrashLoop", SAYS)


def test_it_is_over_once_the_next_pods_have_lasted_a_while() -> None:
    assert degraded(after(looping()), DUE + QUICK_S)[1] == "MembersMissing"


def test_it_is_over_at_once_when_the_job_trains_whole() -> None:
    seen = after(looping(), report=report(), pods=(*looping().pods, pod(2)))
    assert degraded(seen, DUE) == ("False", "AsWanted", "")
    assert degraded(seen, DUE, "Progressing")[1] != "BackingOff"


@pytest.mark.parametrize("type_", ["Degraded", "Progressing"])
def test_an_operator_that_begins_while_the_watchdog_is_away_repeats_no_crash_loop_of_old(type_: str) -> None:
    seen = after(looping(), report=None, plan=None, heard_age_s=3600.0, pods=(pod(0), pod(1)))
    status, reason, says = degraded(seen, NOW + 3600, type_)
    assert (status, reason) != ("True", "CrashLoop")
    assert reason not in ("BackingOff", "CrashLoop")
    assert "starts at" not in says


def test_one_that_begins_then_and_sees_the_pods_crash_says_so() -> None:
    seen = looping(report=None, plan=None, heard_age_s=3600.0)
    assert degraded(seen, NOW)[1:] == ("CrashLoop", f"{SAYS}, the next one starts at {text_of(DUE)}")


@pytest.mark.parametrize(
    "fields",
    [
        {"spec": spec_of({})},
        {"report": None, "plan": None, "heard_age_s": 60.0},
        {"report": None, "plan": None},
    ],
    ids=["refused", "away", "not taken"],
)
def test_a_look_is_due_when_it_changes_also_where_no_pod_is_made(fields: dict[str, Any]) -> None:
    again_s = reconcile(looping(**fields), OPTIONS, NOW).requeue_after_s
    assert again_s is not None
    assert again_s <= DUE - NOW + 1.0


def test_a_member_that_could_not_start_is_no_news_when_nobody_sees_it_any_more() -> None:
    written = {
        "conditions": [{"type": "Progressing", "status": "True", "reason": "MemberCannotStart", "message": "x"}]
    }
    seen = observed(job=job_object(status=written), report=None, plan=None, heard_age_s=3600.0)
    assert degraded(seen, NOW, "Progressing")[1] == "NotHeard"


def test_a_long_wait_is_bounded() -> None:
    crashed = ended_pod(1, ran_s=3.0, ended_at=ENDED, quick_ends=16)
    seen = msgspec.structs.replace(looping(), pods=(pod(0), crashed))
    assert degraded(seen, NOW)[2].endswith(f"the next one starts at {text_of(ENDED + LONGEST_WAIT_S)}")
