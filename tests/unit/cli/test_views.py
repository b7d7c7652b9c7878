import json
import math

import msgspec
import pytest
import yaml
from rich.console import Console
from wireobjects import a_rank, a_status, an_incident

from holdfast.api.finding import Confidence, Subject
from holdfast.api.incident import IncidentState
from holdfast.api.selftest import TestLevel
from holdfast.api.status import JobPhase, JobStatus, PendingTest, RankStatus, reading
from holdfast.api.telemetry import ProcessState
from holdfast.cli.output import Format, Shown, emit
from holdfast.cli.seen import seen
from holdfast.cli.view.incident import incidents_text, story
from holdfast.cli.view.live import screen
from holdfast.cli.view.news import news, progress
from holdfast.cli.view.picture import Picture
from holdfast.cli.view.status import rank_shown, ranks_text, ranks_wide_text, status_text
from holdfast.cli.view.table import number, seconds


def test_a_status_is_one_line_per_fact() -> None:
    assert status_text(seen(a_status())) == (
        "job            research/gpt\n"
        "phase          Running (every rank trains)\n"
        "round          3\n"
        "members        2 of 2 ready, 1 spare\n"
        "world size     2\n"
        "step           120\n"
        "loss           2.3457\n"
        "step time      34 ms\n"
        "checkpoint     step 110, 2.5 s ago\n"
        "verified       ? (nothing has proved a step yet)\n"
        "restarts       1\n"
        "evictions      0\n"
        "incidents      0 open, 1 in all\n"
        "avoided nodes  none"
    )


@pytest.mark.parametrize(
    ("age_s", "step_time_s", "says"),
    [(None, 0.1, "120"), (4.0, 0.1, "120"), (34.0, 0.1, "120; no step for 34 s"), (34.0, 20.0, "120")],
)
def test_a_job_that_makes_no_step_says_for_how_long(age_s: float | None, step_time_s: float, says: str) -> None:
    text = status_text(seen(a_status(step_age_s=age_s, step_time_s=step_time_s)))
    assert f"step           {says}\n" in text


def test_self_tests_that_are_waited_for_are_shown_and_the_rest_is_counted() -> None:
    tests = (
        PendingTest("m1", "n1", TestLevel.FULL, "requested: xid", 1000.0, bars=True),
        PendingTest("m2", "n2", TestLevel.LIGHT, "requested: nan", 1001.5, bars=False),
    )
    text = status_text(seen(a_status(tests=tests, tests_total=3)))
    assert (
        "self-tests     full of n1, asked 2.5 s ago (requested: xid); no ranks before\n"
        "               light of n2, asked 1 s ago (requested: nan); waits until no worker runs\n"
        "               1 more\n"
    ) in text


def test_a_job_that_is_only_observed_says_so() -> None:
    text = status_text(seen(a_status(observed=True)))
    assert "observed       only: what would be done about faults is told, and nothing is done\n" in text


@pytest.mark.parametrize(
    ("verified", "says"),
    [(4900, "step 4900"), (120, "step 120; nothing proved the 4880 steps since")],
)
def test_steps_that_nothing_proves_any_more_are_counted(verified: int, says: str) -> None:
    text = status_text(seen(a_status(step=5000, verified_step=verified)))
    assert f"verified       {says}\n" in text


def test_what_is_unknown_is_shown_as_a_question_mark() -> None:
    text = status_text(seen(a_status(step=None, loss=None, step_time_s=None, round=None, last_checkpoint=None)))
    assert "step           ?" in text
    assert "checkpoint     none" in text
    silent = a_rank(1, process=ProcessState.UNKNOWN, phase=None, step=None, progress_age_s=None, pid=None)
    assert ranks_text([silent]).splitlines()[1].split() == [
        *("1", "node-2", "Unknown", "?", "?", "2.3", "34", "ms", "?", "500", "ms", "ago", "?")
    ]


@pytest.mark.parametrize(("value", "word"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_a_loss_that_is_not_finite_is_shown_by_its_name_in_every_form(
    value: float, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the watchdog's answer, which is JSON, to the table, JSON and YAML that a command writes."""
    told = msgspec.json.encode(
        (a_rank(0, loss=reading(value), grad_norm=reading(value), local_grad_norm=reading(value)),)
    )
    (rank,) = msgspec.json.decode(told, type=tuple[RankStatus, ...])
    assert ranks_text([rank]).splitlines()[1].split()[5] == word
    assert ranks_wide_text([rank]).splitlines()[1].split()[-2:] == [word, word]
    shown = Shown(value=[rank_shown(rank)], table=lambda: "", names=lambda: ())
    emit(shown, Format.JSON)
    assert json.loads(capsys.readouterr().out)[0]["loss"] == word
    emit(shown, Format.YAML)
    assert yaml.safe_load(capsys.readouterr().out)[0]["grad_norm"] == word
    status = msgspec.json.decode(msgspec.json.encode(a_status(loss=reading(value))), type=JobStatus)
    assert f"loss           {word}\n" in status_text(seen(status))


def test_a_history_that_is_not_healthy_is_told() -> None:
    assert "unhealthy      not finite from step 90 on" in status_text(seen(a_status(unhealthy_from=90)))


def test_ranks_are_aligned_one_a_line() -> None:
    assert ranks_text([a_rank(0), a_rank(1)]) == (
        "RANK  NODE    PROCESS  PHASE    STEP  LOSS  STEP TIME  PROGRESS   HEARD       PID\n"
        "0     node-1  Running  forward  120   2.3   34 ms      10 ms ago  500 ms ago  4711\n"
        "1     node-2  Running  forward  120   2.3   34 ms      10 ms ago  500 ms ago  4711"
    )
    assert ranks_text([]) == "no round is running"


def test_incidents_are_aligned_one_a_line() -> None:
    open_one = an_incident(
        id="incident-2", state=IncidentState.OPEN, recovered_at=None, lost_steps=None, actions=()
    )
    header, healed, unhealed = incidents_text([an_incident(), open_one]).splitlines()
    assert header.endswith("RUNG         DETECTED  NEW STEP  STEPS LOST  STATE")
    assert healed.startswith("incident-1  ProcessExit  node node-2 rank 1  signal 9 (SIGKILL)  2 respawned  4 ms ")
    assert healed.endswith("200 ms    4           Recovered")
    assert unhealed.endswith("none         4 ms      ?         ?           Open")
    assert incidents_text([]) == "no incident"


def test_the_story_of_an_incident_holds_everything_known_of_it() -> None:
    assert story(an_incident(note="joined by rank 0")) == (
        "incident-1: ProcessExit of node node-2 rank 1 in research/gpt\n\n"
        "It is recovered. It was detected 4 ms after it began; the first new step completed 200 ms after it; "
        "it cost 4 steps.\n\n"
        "cause       signal 9 (SIGKILL)\n"
        "confidence  Certain that node node-2 rank 1 is the culprit\n\n"
        "evidence\n"
        "    +0.004 s  launcher node-2: rank 1 ended\n\n"
        "actions\n"
        "    +0.005 s  rung 2: round 3 with a new process, because a worker died\n\n"
        "timeline\n"
        "    +0.200 s  every rank completed a new step\n\n"
        "error\n"
        "  Traceback\n"
        "  ValueError: bad\n\n"
        "note\n"
        "  joined by rank 0"
    )


def test_the_story_of_an_open_incident_names_no_cost_it_does_not_know() -> None:
    told = story(an_incident(state=IncidentState.OPEN, recovered_at=None, error=""))
    assert "no new step has completed since" in told
    assert "error" not in told
    assert "an unknown number of steps" in story(an_incident(lost_steps=None))


def test_an_incident_nobody_can_be_named_for_says_so() -> None:
    told = story(an_incident(culprit=Subject(job="a/b"), confidence=Confidence.UNKNOWN))
    assert "confidence  Unknown: nobody can be named" in told


def test_one_of_several_who_differ_is_not_called_the_culprit() -> None:
    tie = an_incident(culprit=Subject(job="a/b", node="node-1"), confidence=Confidence.UNKNOWN)
    told = story(tie)
    assert "ProcessExit of node node-1? in" in told
    assert "confidence  Unknown: node node-1 is concerned, and nobody is proved to be the culprit" in told
    assert "  node node-1?  " in incidents_text([tie])


def test_a_pod_that_somebody_ended_is_named_and_not_its_node() -> None:
    pod = an_incident(culprit=Subject(job="a/b", node="node-1", member="gpt-0"), innocent=True)
    assert "pod gpt-0" in incidents_text([pod])
    assert "of pod gpt-0 in" in story(pod)
    assert "node node-1 is not to blame" in story(pod)


def test_what_was_only_reported_did_not_recover_and_cost_nothing() -> None:
    report = an_incident(actions=(), recovered_round=None, lost_steps=None)
    assert "It was reported. It was detected 4 ms after it began; nothing was done about it." in story(report)
    *_, last = news(Picture(a_status()), Picture(a_status(), incidents=(report,)))
    assert last == "incident-1: reported, nothing was changed"


def test_a_node_that_left_before_it_had_ranks_cost_no_step() -> None:
    spare = an_incident(recovered_round=None, recovered_at=100.004, lost_steps=None)
    assert "It is recovered. It was detected 4 ms after it began; no round had to be healed." in story(spare)
    *_, last = news(Picture(a_status()), Picture(a_status(), incidents=(spare,)))
    assert last == "incident-1: over, no round had to be healed"


def test_whom_a_preflight_waits_for_is_news() -> None:
    first = Picture(a_status(phase=JobPhase.PREFLIGHT, reason="a, b"))
    second = Picture(a_status(phase=JobPhase.PREFLIGHT, reason="b"))
    assert news(first, second) == ["Preflight: b"]
    assert news(second, second) == []


def test_the_first_picture_tells_the_round_and_open_incidents_and_names_those_of_an_earlier_run() -> None:
    over, is_open = an_incident(), an_incident(id="incident-2", state=IncidentState.OPEN)
    assert news(None, Picture(a_status(), incidents=(over, is_open))) == [
        "round 3: 2 ranks; every rank trains",
        "incidents of an earlier run: incident-1; `holdfast incidents` tells them",
        "incident-2: ProcessExit of node node-2 rank 1: signal 9 (SIGKILL)",
    ]


def test_an_unchanged_picture_is_no_news() -> None:
    picture = Picture(a_status(), incidents=(an_incident(),))
    assert news(picture, picture) == []


@pytest.mark.parametrize(
    ("phase", "expected"),
    [(JobPhase.SUCCEEDED, ["Succeeded: every rank trains"]), (JobPhase.RECOVERING, [])],
)
def test_a_new_phase_is_news_unless_rounds_and_incidents_tell_it(phase: JobPhase, expected: list[str]) -> None:
    assert news(Picture(a_status()), Picture(a_status(phase=phase))) == expected


def test_a_paged_incident_asks_for_a_human() -> None:
    before = Picture(a_status(), incidents=(an_incident(state=IncidentState.OPEN),))
    after = Picture(a_status(), incidents=(an_incident(state=IncidentState.PAGED),))
    assert news(before, after) == ["incident-1: a human is needed"]


def test_progress_is_one_line() -> None:
    assert progress(Picture(a_status())) == "step 120  loss 2.3457  34 ms a step  2 ranks"


def test_the_live_view_shows_job_ranks_incidents_and_messages() -> None:
    console = Console(width=160, record=True, force_terminal=False)
    picture = Picture(a_status(), (a_rank(0), a_rank(1)), (an_incident(),))
    with console.capture() as captured:
        console.print(screen(picture, ["  1.0s  injecting"], elapsed_s=12.3, steps=300))
        console.print(screen(None, ["starting"], elapsed_s=0.4, steps=0))
    shown = captured.get()
    for expected in ("research/gpt  Running  12 s", "step 120", "node-2", "incident-1 ProcessExit", "injecting"):
        assert expected in shown
    headed = [line.split() for line in shown.splitlines() if "progress" in line]
    assert headed == [["│", "rank", "node", "process", "phase", "step", "loss", "progress", "│"]]
    assert "starting  0 s" in shown


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "?"), (0.0, "0 ms"), (0.0123, "12.3 ms"), (0.9999, "1 s"), (59.96, "60 s"), (660.0, "11 min")],
)
def test_durations_are_shown_in_the_unit_that_fits(value: float | None, expected: str) -> None:
    assert seconds(value) == expected


def test_numbers_are_shown_to_five_digits() -> None:
    assert [number(None), number(123456), number(2.345678)] == ["?", "123456", "2.3457"]
