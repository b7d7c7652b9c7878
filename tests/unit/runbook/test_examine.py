"""The order of answers, and that what cannot be read is unknown."""

import re
from pathlib import Path

import pytest

from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import Incident, IncidentState
from holdfast.console.runbook import known
from holdfast.console.runbook.answer import Said, Verdict, Weight, fine, hint, named, proved, unknown
from holdfast.console.runbook.check import Check
from holdfast.console.runbook.command import Typed, in_cluster
from holdfast.console.runbook.examine import examine
from holdfast.console.runbook.known import Known
from holdfast.console.runbook.symptom import Symptom, symptom_of
from holdfast.console.runbook.table import CHECKS, checks_of

READS = {"status", "ranks", "nodes", "logs", "incidents", "journal", "doctor", "cost"}
NOTHING = Known("research/gpt", 1000.0)


@pytest.mark.parametrize("symptom", list(Symptom))
def test_of_a_job_of_which_nothing_can_be_read_everything_is_unknown(symptom: Symptom) -> None:
    found = examine(symptom, NOTHING)
    assert len(found) >= 10
    assert {each.verdict for each in found} == {Verdict.UNKNOWN}
    assert all(each.evidence for each in found)
    assert [each.likely for each in found] == sorted((each.likely for each in found), reverse=True)


def test_suspects_come_by_what_they_rest_on_then_by_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"a": fine(""), "b": hint(""), "c": proved(""), "d": named(""), "e": unknown(""), "f": named("")}
    table = tuple(
        Check(id, id, {Symptom.SLOW: place}, _says(each), ("status",))
        for place, (id, each) in enumerate(said.items())
    )
    monkeypatch.setattr("holdfast.console.runbook.examine.checks_of", lambda _: table)
    assert [each.id for each in examine(Symptom.SLOW, NOTHING)] == ["c", "f", "d", "b", "e", "a"]


def _says(said: Said):  # type: ignore[no-untyped-def]
    return lambda known: said


def test_a_check_that_fails_says_so_and_takes_no_other_one_away() -> None:
    def fails(known: Known) -> Said:
        raise ZeroDivisionError("no steps")

    answer = Check("x", "x", {Symptom.SLOW: 1}, fails, ("status",)).answer(Symptom.SLOW, NOTHING)
    assert (answer.verdict, answer.proved) == (Verdict.UNKNOWN, False)
    assert answer.evidence == "the check itself failed (ZeroDivisionError: no steps)"


def test_the_first_command_is_used_whose_places_are_known() -> None:
    check = Check("x", "x", {}, fine, ("why {incident}", "logs --rank {rank}", "ranks"))  # type: ignore[arg-type]
    assert check.command({"incident": "inc-1", "rank": "3"}) == "why inc-1"
    assert check.command({"rank": "3"}) == "logs --rank 3"
    assert check.command({}) == "ranks"


def test_a_command_names_the_job_where_it_is_typed() -> None:
    assert Typed().line("why inc-1") == "holdfast why inc-1"
    assert Typed(place=("--state-dir", "a b")).line("ranks") == "holdfast ranks --state-dir 'a b'"
    assert in_cluster("research", "gpt").line("ranks") == "kubectl holdfast ranks gpt -n research"
    assert in_cluster("research", "gpt").line("cost") == "kubectl holdfast cost gpt -n research"
    assert in_cluster("research", "gpt").line("why inc-1") == "kubectl holdfast why inc-1 --job gpt -n research"
    assert (
        in_cluster("research", "gpt").line("checkpoint take") == "kubectl holdfast checkpoint take gpt -n research"
    )
    assert in_cluster("research", "gpt").line("doctor") == "kubectl holdfast doctor -n research"


def test_the_table_is_whole() -> None:
    assert len({each.id for each in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert check.likely, check.id
        assert all(0 < share <= 100 for share in check.likely.values()), check.id
        assert "{" not in check.next[-1], f"{check.id}: the last command has to be known always"
        assert check.next[-1].split()[0] in READS, f"{check.id}: nothing is done about what is not suspect"
    assert all(len(checks_of(symptom)) >= 10 for symptom in Symptom)
    assert Weight.PROVED > Weight.NAMED > Weight.HINTED


def test_the_page_knows_the_symptoms_and_the_incidents_they_are_about() -> None:
    script = (Path(known.__file__).parents[1] / "static" / "runbook.js").read_text()
    told = re.findall(r'\["([a-z-]+)", "[^"]+", \[([^\]]*)\]\]', script)
    kinds = {kind: symptom for symptom, named in told for kind in re.findall(r'"(\w+)"', named)}
    assert {symptom for symptom, _ in told} == {each.value for each in Symptom}
    assert kinds == {kind.value: symptom_of(_of(kind)).value for kind in FindingKind}


def _of(kind: FindingKind) -> Incident:
    return Incident("inc-1", "a/b", kind, Subject("a/b"), Confidence.UNKNOWN, "", IncidentState.OPEN, 0.0, 0.0, ())
