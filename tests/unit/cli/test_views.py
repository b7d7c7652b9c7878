import json
import math

import msgspec
import pytest
import yaml
from golden import assert_golden
from rich.console import Console
from wireobjects import a_rank, a_status, an_incident

from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import IncidentState, Slowed
from holdfast.api.selftest import TestLevel
from holdfast.api.status import JobPhase, JobStatus, Membership, PendingTest, RankStatus, reading
from holdfast.api.telemetry import ProcessState
from holdfast.cli.embedded.audience import Picture, news, progress
from holdfast.cli.embedded.liveaudience import screen
from holdfast.cli.incidentview import culprit_text, incidents_text, story
from holdfast.cli.output import Format, emit, number, seconds
from holdfast.cli.seen import seen
from holdfast.cli.view import rank_shown, ranks_text, ranks_wide_text, status_text

OPEN = an_incident(id="incident-2", state=IncidentState.OPEN, recovered_at=None, lost_steps=None, actions=())
TIE = an_incident(culprit=Subject(job="a/b", node="node-1"), confidence=Confidence.UNKNOWN)
POD = an_incident(culprit=Subject(job="a/b", node="node-1", member="gpt-0"), innocent=True)
REPORT = an_incident(actions=(), recovered_round=None, lost_steps=None)
SLOW = an_incident(
    kind=FindingKind.STRAGGLER,
    cause="slow: Machine",
    actions=(),
    recovered_round=None,
    recovered_at=None,
    lost_steps=None,
    error="",
    note="the slowness stayed with node node-2: rank 1 was not slow elsewhere for 120 steps",
    slowed=Slowed(0.3, 1_000, 2_400_000.0),
)
SPARE = an_incident(recovered_round=None, recovered_at=100.004, lost_steps=None)


def test_a_status_is_one_line_per_fact_and_says_what_is_wrong_or_unknown() -> None:
    cases = {
        "a job that runs": {},
        "a step four seconds old is no news": {"step_age_s": 4.0, "step_time_s": 0.1},
        "no step for long": {"step_age_s": 34.0, "step_time_s": 0.1},
        "steps that take long are awaited": {"step_age_s": 34.0, "step_time_s": 20.0},
        "nobody is seen to train": {
            "phase": JobPhase.STALLED,
            "reason": "no step is seen; every rank trains",
            "members": Membership(wanted=2, ready=0, spares=1, joined=2),
            "step_age_s": 90.0,
        },
        "a job that is only observed": {"observed": True},
        "a script that says how far it goes": {"until_step": 400},
        "nearly every step is proved": {"step": 5000, "verified_step": 4900},
        "nothing proves the newest steps any more": {"step": 5000, "verified_step": 120},
        "a history that is not healthy": {"unhealthy_from": 90},
        "a script that cannot do what a divergence asks for": {
            "unfollowed": "the script cannot pass over batches; take them from Checkpointer.steps"
        },
        "what is unknown is a question mark": {
            **dict.fromkeys(("step", "loss", "step_time_s", "round", "last_checkpoint"))
        },
    }
    assert_golden("status", {case: status_text(seen(a_status(**each))) for case, each in cases.items()})


def test_self_tests_that_are_waited_for_are_shown_and_the_rest_is_counted() -> None:
    tests = (
        PendingTest("m1", "n1", TestLevel.FULL, "requested: xid", 1000.0, bars=True),
        PendingTest("m2", "n2", TestLevel.LIGHT, "requested: nan", 1001.5, bars=False),
        PendingTest("m3", "n3", TestLevel.FULL, "requested: xid", 1001.5, bars=True, waits_for="round 7 to train"),
    )
    text = status_text(seen(a_status(tests=tests, tests_total=4)))
    assert (
        "self-tests     full of n1, asked 2.5 s ago (requested: xid); no ranks before\n"
        "               light of n2, asked 1 s ago (requested: nan); waits until no worker runs\n"
        "               full of n3, asked 1 s ago (requested: xid); waits for round 7 to train\n"
        "               1 more\n"
    ) in text


def test_ranks_are_aligned_one_a_line() -> None:
    silent = a_rank(1, process=ProcessState.UNKNOWN, phase=None, step=None, progress_age_s=None, pid=None)
    cases = {
        "two ranks": [a_rank(0), a_rank(1)],
        "a rank nothing is heard of": [silent],
        "none": [],
    }
    assert_golden("ranks", {case: ranks_text(each) for case, each in cases.items()})


def test_incidents_are_aligned_one_a_line() -> None:
    cases = {
        "one healed, one open": [an_incident(), OPEN],
        "one of several who differ is not called the culprit": [TIE],
        "a pod that somebody ended is named and not its node": [POD],
        "what slowness costs is not cut off": [SLOW, msgspec.structs.replace(SLOW, cause="a long cause " * 4)],
        "none": [],
    }
    assert_golden("incidents", {case: incidents_text(each) for case, each in cases.items()})


def test_a_story_tells_what_is_known_and_claims_nothing_else() -> None:
    cases = {
        "everything that is known": an_incident(note="joined by rank 0"),
        "an open one names no cost it does not know": an_incident(
            state=IncidentState.OPEN, recovered_at=None, error=""
        ),
        "how many steps were lost is unknown": an_incident(lost_steps=None),
        "nobody can be named": an_incident(culprit=Subject(job="a/b"), confidence=Confidence.UNKNOWN),
        "one of several who differ is not called the culprit": TIE,
        "a pod that somebody ended is named and not its node": POD,
        "what was only reported did not recover and cost nothing": REPORT,
        "a node that left before it had ranks cost no step": SPARE,
        "what all waited for tells what that costs": SLOW,
    }
    assert_golden("story", {case: story(each) for case, each in cases.items()})


def test_a_tie_names_all_who_differ_and_blames_nobody() -> None:
    other = Subject("a/b", node="node-3", rank=2, gpu="GPU-abcdefgh-0123")
    tie = an_incident(kind=FindingKind.CORRUPTION, confidence=Confidence.UNKNOWN, also=(other,))
    assert culprit_text(tie) == "node node-2 rank 1 or node node-3 GPU GPU-abcdefgh rank 2?"
    told = story(tie)
    assert "Unknown: node node-2 rank 1 or node node-3 GPU GPU-abcdefgh-0123 rank 2 may be concerned" in told


def test_what_changes_between_two_looks_is_news() -> None:
    over, still_open = an_incident(), an_incident(id="incident-2", state=IncidentState.OPEN)
    first = Picture(a_status(phase=JobPhase.PREFLIGHT, reason="a, b"))
    second = Picture(a_status(phase=JobPhase.PREFLIGHT, reason="b"))
    before = Picture(a_status(), incidents=(an_incident(state=IncidentState.OPEN),))
    after = Picture(a_status(), incidents=(an_incident(state=IncidentState.PAGED),))
    cases = {
        "the first look names incidents of an earlier run": news(
            None, Picture(a_status(), incidents=(over, still_open))
        ),
        "a preflight waits for others than before": news(first, second),
        "it still waits for the same": news(second, second),
        "a human is needed": news(before, after),
        "an incident was only reported": news(Picture(a_status()), Picture(a_status(), incidents=(REPORT,))),
        "no round had to be healed": news(Picture(a_status()), Picture(a_status(), incidents=(SPARE,))),
        "progress": [progress(Picture(a_status()))],
    }
    assert_golden("news", {case: "\n".join(each) for case, each in cases.items()})


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
    emit(Format.JSON, [rank_shown(rank)], table=str, names=())
    assert json.loads(capsys.readouterr().out)[0]["loss"] == word
    emit(Format.YAML, [rank_shown(rank)], table=str, names=())
    assert yaml.safe_load(capsys.readouterr().out)[0]["grad_norm"] == word
    status = msgspec.json.decode(msgspec.json.encode(a_status(loss=reading(value))), type=JobStatus)
    assert f"loss           {word}\n" in status_text(seen(status))


def test_an_unchanged_picture_is_no_news() -> None:
    picture = Picture(a_status(), incidents=(an_incident(),))
    assert news(picture, picture) == []


@pytest.mark.parametrize(
    ("phase", "expected"),
    [(JobPhase.SUCCEEDED, ["Succeeded: every rank trains"]), (JobPhase.RECOVERING, [])],
)
def test_a_new_phase_is_news_unless_rounds_and_incidents_tell_it(phase: JobPhase, expected: list[str]) -> None:
    assert news(Picture(a_status()), Picture(a_status(phase=phase))) == expected


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


def test_what_a_worker_wrote_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "cause\t1\x1b]0;mine\x07\x9b2J\r\nénd"
    emit(Format.TABLE, None, table=lambda _: hostile, names=[])
    assert capsys.readouterr().out == "cause\t1\\x1b]0;mine\\x07\\x9b2J\\x0d\nénd\n"


def test_a_hang_of_what_the_script_does_blames_no_node() -> None:
    who = Subject(job="a/b", node="node-1", member="gpt-0", rank=1)
    text = story(an_incident(kind=FindingKind.HANG, culprit=who, innocent=True))
    assert "Hang of the script, rank 1" in text
    assert "that it is what the script does; no node is to blame" in text
