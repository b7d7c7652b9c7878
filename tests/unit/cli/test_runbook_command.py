"""`holdfast runbook`: what is shown, what is refused, and that every command it tells can be typed."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from fakewatchdog import FakeWatchdog, fake_watchdog
from golden import assert_golden
from wireobjects import JOB, a_rank, a_status, an_incident

from holdfast.api.errors import Unavailable
from holdfast.api.event import Journaled
from holdfast.api.finding import Confidence, FindingKind
from holdfast.api.incident import IncidentState
from holdfast.cli.commands.runbook import runbook_text, symptoms_text, typed_at
from holdfast.cli.knowledge import known_of
from holdfast.cli.main import answer, holdfast
from holdfast.cli.seen import RecordedIncidents, SeenStatus, Source
from holdfast.cli.target import Program, Target
from holdfast.console.runbook.answer import Verdict
from holdfast.console.runbook.check import Check
from holdfast.console.runbook.command import Typed, in_cluster
from holdfast.console.runbook.examine import examine
from holdfast.console.runbook.known import Known
from holdfast.console.runbook.symptom import Symptom, fitting
from holdfast.console.runbook.table import CHECKS
from holdfast.watchdog.server.jobs import JournalPage

NOW = 1002.5
OPEN = an_incident(
    id="inc-0004",
    kind=FindingKind.HANG,
    confidence=Confidence.PROBABLE,
    cause="did not reach the collective",
    state=IncidentState.OPEN,
    detected_at=NOW - 20.0,
)


@pytest.fixture
def watchdog(tmp_path: Path) -> Iterator[FakeWatchdog]:
    with fake_watchdog(tmp_path) as fake:
        fake.answers["GET status"] = (200, a_status())
        fake.answers["GET ranks"] = (200, [a_rank(0), a_rank(1)])
        fake.answers["GET incidents"] = (200, [OPEN])
        fake.answers["GET nodes"] = (200, [])
        fake.answers["GET journal"] = (200, JournalPage((), None))
        fake.answers["GET plan"] = (200, None)
        fake.answers["GET round"] = (200, None)
        yield fake


@pytest.fixture
def here(tmp_path: Path) -> list[str]:
    return ["--state-dir", str(tmp_path)]


def seen() -> Known:
    return Known(
        JOB,
        NOW,
        phase="Running",
        reason="every rank trains",
        status=a_status(),
        ranks=(a_rank(0), a_rank(1)),
        incidents=(OPEN,),
        nodes=(),
        unread={"journal": "there is no journal in /run"},
    )


def test_what_is_shown() -> None:
    known = seen()
    texts = {
        "a job that hangs, in a cluster": runbook_text(
            Symptom.HUNG, known, examine(Symptom.HUNG, known), in_cluster("research", "gpt")
        ),
        "a job of which nothing is known, on this machine": runbook_text(
            Symptom.COST, Known(JOB, NOW), examine(Symptom.COST, Known(JOB, NOW)), Typed()
        ),
        "no symptom": symptoms_text(fitting(known)),
        "no symptom, of a job that shows none": symptoms_text({}),
    }
    assert_golden("runbook", texts)


def test_the_answer_is_for_programs_too(
    watchdog: FakeWatchdog, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["runbook", "hung", *here, "-o", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["job"], told["symptom"]) == (JOB, "hung")
    assert set(told["checks"][0]) == {"id", "title", "verdict", "proved", "evidence", "next"}
    assert (told["checks"][0]["id"], told["checks"][0]["proved"]) == ("absent-rank", False)
    assert told["checks"][0]["next"] == f"holdfast logs --rank 1 --tail 50 {' '.join(here)}"
    assert answer(["runbook", "hung", *here, "-o", "name"]) == 1
    assert capsys.readouterr().out.splitlines() == ["check/absent-rank"]


def test_nothing_suspect_and_something_unknown_is_no_success(watchdog: FakeWatchdog, here: list[str]) -> None:
    watchdog.answers["GET incidents"] = (200, [])
    assert answer(["runbook", "nan", *here]) == 3


def test_what_cannot_be_read_is_unknown_and_the_rest_is_told(
    watchdog: FakeWatchdog, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    watchdog.answers["GET nodes"] = (500, {"error": "no"})
    assert answer(["runbook", "node-suspect", *here, "-o", "json"]) == 3
    checks = {each["id"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["agent-silent"]["verdict"] == "unknown"
    assert "nodes could not be read: " in checks["agent-silent"]["evidence"]


def test_without_a_symptom_it_says_which_the_job_shows(
    watchdog: FakeWatchdog, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["runbook", *here, "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told) == len(Symptom)
    assert told[0]["symptom"] == "hung"
    assert told[0]["fits"] == "inc-0004 is Open: Hang, did not reach the collective"
    assert {each["fits"] for each in told[1:]} == {None}


def test_without_a_job_the_symptoms_are_listed_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["runbook", "--state-dir", str(tmp_path / "none")]) == 3
    said = capsys.readouterr()
    assert "which of them the job shows is unknown" in said.err
    assert all(each.value in said.out for each in Symptom)
    assert answer(["runbook", "hung", "--state-dir", str(tmp_path / "none")]) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lost-spiked"], "write one of loss-spiked, hung, slow"),
        (["hung", "--since", "0s"], "--since: '0 s' is not accepted; give a time above 0"),
        (["hung", "--since", "often"], "'often' is not accepted"),
    ],
)
def test_a_wrong_word_is_refused_with_what_to_write(
    words: list[str], said: str, watchdog: FakeWatchdog, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["runbook", *words, *here]) == 2
    assert said in capsys.readouterr().err


class OnRecord:
    """A job of a cluster whose watchdog is away."""

    job = JOB

    def status(self) -> SeenStatus:
        return SeenStatus(JOB, "Invalid", "spec.nodes: give min", source=Source.RECORD, now=NOW)

    def incidents(self) -> RecordedIncidents:
        return RecordedIncidents(())

    def journal(self, after: int) -> Iterator[Journaled]:
        raise Unavailable("the watchdog is away")


def test_of_a_job_that_only_the_record_knows_what_it_says_is_used_and_the_rest_is_unknown() -> None:
    known = known_of(OnRecord(), 7200.0)  # type: ignore[arg-type]
    first, *rest = examine(Symptom.WILL_NOT_START, known)
    assert (first.id, first.proved) == ("spec-refused", True)
    assert "give min" in first.evidence
    assert {each.verdict for each in rest} == {Verdict.UNKNOWN, Verdict.FINE}
    assert {each.id for each in rest if each.verdict is Verdict.FINE} == {"held", "over", "backing-off"}
    assert fitting(known) == {Symptom.WILL_NOT_START: "the phase is Invalid: spec.nodes: give min"}
    assert known.unread["incidents"] == "the watchdog is away, and the record has no evidence of them"


FILLED = {"incident": "inc-0001", "node": "node-7", "rank": "3", "step": "100"}


def lines() -> Iterator[tuple[Check, str]]:
    for check in CHECKS:
        for template in check.next:
            for typed in (Typed(place=("--state-dir", "run")), in_cluster("research", "gpt")):
                yield check, typed.line(template.format(**FILLED))


@pytest.mark.parametrize(("check", "line"), [pytest.param(*each, id=each[1]) for each in lines()])
def test_every_command_that_is_told_next_can_be_typed(check: Check, line: str) -> None:
    words = line.split()
    program = Program.KUBECTL if words[0] == "kubectl" else None
    command: click.Command = holdfast
    arguments = words[words.index("holdfast") + 1 :]
    context = click.Context(holdfast, obj=program)
    while isinstance(command, click.Group):
        name, below, rest = command.resolve_command(context, arguments)
        assert below is not None, line
        command, arguments = below, rest
        context = click.Context(command, info_name=name, parent=context)
    command.make_context("next", arguments, parent=context.parent)


@pytest.mark.parametrize("check", CHECKS, ids=lambda each: each.id)
def test_a_command_that_is_named_in_a_text_is_there(check: Check) -> None:
    for name in re.findall(r"`holdfast ([\w-]+)", f"{check.title} {check.source}"):
        assert name in holdfast.list_commands(click.Context(holdfast))


def test_a_command_that_follows_names_the_place_that_was_named() -> None:
    assert typed_at(Target(program=Program.KUBECTL), JOB).line("ranks") == "kubectl holdfast ranks gpt -n research"
    named = Target(job="gpt", watchdog="h:1", token_file=Path("t"))
    assert typed_at(named, JOB).line("why x") == "holdfast why x --job research/gpt --watchdog h:1 --token-file t"
    elsewhere = Target(program=Program.KUBECTL, holdfast_namespace="hf", context="c")
    assert typed_at(elsewhere, JOB).line("ranks") == (
        "kubectl holdfast ranks gpt -n research --context c --holdfast-namespace hf"
    )
