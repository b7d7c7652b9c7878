"""Checks as data: what is refused, what they say, and that one made of an incident finds that fault again."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace
from situations import SITUATIONS, a_higher_learning_rate, healthy, played
from unseen import UNSEEN
from watchedjob import WatchedJob

from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.errors import InvalidInput
from holdfast.console.checkfiles import checks_in
from holdfast.console.runbook.answer import Verdict
from holdfast.console.runbook.distilling import distilled
from holdfast.console.runbook.examine import examine
from holdfast.console.runbook.known import Known
from holdfast.console.runbook.measured import FIGURES
from holdfast.console.runbook.symptom import Symptom
from holdfast.console.runbook.table import CHECKS
from holdfast.console.runbook.written import looked, read_check, refuse_twins, runnable, written


def a_check(**changes: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "format": 1,
        "id": "a-fault",
        "title": "A fault",
        "symptoms": {"hung": 30},
        "facts": [{"incident": {"kind": "Hang"}}],
    }
    return {**known, **changes}


def said(known: Known, *facts: dict[str, Any], **changes: Any) -> Any:
    document = yaml.safe_dump(a_check(facts=list(facts), **changes))
    return looked(read_check(document.encode(), "a.yaml"), known)


BROKEN = {
    "no document": ("a: [", "a.yaml"),
    "no check": ("- 1", "a.yaml"),
    "another format": (a_check(format=2), "format"),
    "a field that is none": (a_check(sypmtoms={}), "sypmtoms"),
    "an id with a space": (a_check(id="a b"), "id"),
    "no symptom": (a_check(symptoms={}), "symptoms"),
    "a symptom that is none": (a_check(symptoms={"sad": 3}), "sad"),
    "a likelihood above 100": (a_check(symptoms={"hung": 101}), "symptoms"),
    "no fact": (a_check(facts=[]), "facts"),
    "a fact of two sorts": (
        a_check(facts=[{"incident": {"kind": "Hang"}, "condition": {"kind": "LinkDown"}}]),
        "facts[0]",
    ),
    "an empty fact": (a_check(facts=[{}]), "facts[0]"),
    "a kind that is none": (a_check(facts=[{"incident": {"kind": "Sad"}}]), "Sad"),
    "a figure that is none": (a_check(facts=[{"figure": {"name": "joy", "above": 1}}]), "joy"),
    "a figure without a limit": (a_check(facts=[{"figure": {"name": "ettr"}}]), "above or below"),
    "a command that changes a job": (a_check(next=["evict {node}"]), "evict"),
    "a command with a second one": (a_check(next=["why last; rm -r x"]), "why last; rm"),
    "a command that asks for what is not known": (a_check(next=["why {secret}"]), "{secret}"),
    "more than a check may be": ("#" * 70000, "65536"),
    "a day that is none": ("learned: 2001-99-99", "month"),
    "a word that is no number": ("learned: !!int many", "invalid literal"),
    "a word that is no truth value": ("learned: !!bool many", "many"),
    "a word that is no time": ("learned: !!timestamp many", "YAML document"),
    "a number that is too long": (f"learned: {'9' * 5000}", "limit"),
    "half a character": (yaml.safe_dump(a_check()) + 'learned: "\\ud800"\n', "half a character"),
    "a limit that nothing is beyond": (
        a_check(facts=[{"figure": {"name": "ettr", "above": float("nan")}}]),
        "limit",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_check_is_refused_with_the_file_and_what_is_wrong(case: str) -> None:
    document, names = BROKEN[case]
    content = document if isinstance(document, str) else yaml.safe_dump(document)
    with pytest.raises(InvalidInput) as refused:
        read_check(content.encode(), "a.yaml")
    assert "a.yaml" in str(refused.value)
    assert names in str(refused.value)


def test_a_folder_is_read_file_by_file_and_two_checks_have_two_ids(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(a_check()))
    (tmp_path / "b.yml").write_text(yaml.safe_dump(a_check(id="b-fault")))
    (tmp_path / ".hidden.yaml").write_text("- 1")
    (tmp_path / "notes.txt").write_text("- 1")
    assert [each.id for each in checks_in(tmp_path)] == ["a-fault", "b-fault"]
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(a_check()))
    with pytest.raises(InvalidInput, match="a-fault"):
        checks_in(tmp_path)
    with pytest.raises(InvalidInput, match="name a folder"):
        checks_in(tmp_path / "gone")


def test_no_check_takes_the_place_of_a_built_in_one() -> None:
    twin = read_check(yaml.safe_dump(a_check(id=CHECKS[0].id)).encode(), "a.yaml")
    with pytest.raises(InvalidInput, match=CHECKS[0].id):
        refuse_twins([twin], [each.id for each in CHECKS])


class TestFacts:
    def test_an_incident_by_its_words_and_how_often_it_came(self) -> None:
        known = played(a_higher_learning_rate)
        one = {"incident": {"kind": "ProcessExit", "cause": "signal 9*", "evidence": "launcher ?: rank 3 *"}}
        assert said(known, one).verdict is Verdict.SUSPECT
        assert said(known, one).about["incident"] == "inc-0001"
        for unlike in ({"kind": "Hang"}, {"cause": "signal 8*"}, {"evidence": "agent *"}, {"count": 2}):
            fact = {"incident": {**one["incident"], **unlike}}
            assert said(known, fact).verdict is Verdict.FINE, unlike
        assert said(replace(known, incidents=None), one).verdict is Verdict.UNKNOWN

    def test_a_condition_that_holds_and_one_that_nobody_would_see(self) -> None:
        job = WatchedJob()
        fact = {"condition": {"kind": "LinkDown"}}
        assert said(job.train(5).known(), fact).verdict is Verdict.FINE
        link = Condition(ConditionKind.LINK_DOWN, ConditionState.RAISED, 1.0, "port 1 is down")
        job.report = lambda report: replace(report, conditions=(link,) if report.node == "b" else ())
        told = said(job.train(5).known(), fact)
        assert (told.verdict, told.about["node"]) == (Verdict.SUSPECT, "b")
        assert said(replace(job.known(), nodes=None, unread={}), fact).verdict is Verdict.UNKNOWN

    def test_a_figure_beyond_its_limit(self) -> None:
        known = played(healthy)
        assert said(known, {"figure": {"name": "stepTimeSeconds", "above": 5}}).verdict is Verdict.FINE
        assert said(known, {"figure": {"name": "stepTimeSeconds", "above": 0.5}}).verdict is Verdict.SUSPECT
        assert said(known, {"figure": {"name": "stepTimeSeconds", "below": 5}}).verdict is Verdict.SUSPECT
        hot = said(known, {"figure": {"name": "gpuTemperatureCelsius", "above": 10}})
        assert hot.about["node"] in "abcd"
        assert said(Known("a/b", 1.0), {"figure": {"name": "ettr", "below": 1}}).verdict is Verdict.UNKNOWN

    @pytest.mark.parametrize("name", FIGURES)
    def test_each_figure_is_known_of_a_job_that_trains_and_unknown_of_none(self, name: str) -> None:
        assert FIGURES[name](played(healthy))[0] is not None
        assert FIGURES[name](Known("a/b", 1.0))[0] is None

    def test_a_setting_that_changed_in_the_window(self) -> None:
        known = played(a_higher_learning_rate)
        assert said(known, {"change": {"setting": "configuration/l?"}}).verdict is Verdict.SUSPECT
        assert said(known, {"change": {"setting": "commit"}}).verdict is Verdict.FINE
        assert said(replace(known, window_s=1.0), {"change": {"setting": "*"}}).verdict is Verdict.FINE
        assert said(replace(known, journal=None), {"change": {"setting": "*"}}).verdict is Verdict.UNKNOWN

    def test_any_needs_one_and_all_need_all(self) -> None:
        known = played(a_higher_learning_rate)
        holds, not_so = {"incident": {"kind": "ProcessExit"}}, {"incident": {"kind": "Hang"}}
        dark = {"condition": {"kind": "LinkDown"}}
        blind = replace(known, nodes=None, unread={"nodes": "away"})
        assert said(known, not_so, holds, needs="any").verdict is Verdict.SUSPECT
        assert said(known, not_so, holds, needs="all").verdict is Verdict.FINE
        assert said(known, holds, holds, needs="all").verdict is Verdict.SUSPECT
        assert said(blind, holds, dark, needs="all").verdict is Verdict.UNKNOWN
        assert said(blind, not_so, dark, needs="all").verdict is Verdict.FINE
        assert said(blind, not_so, dark, needs="any").verdict is Verdict.UNKNOWN
        assert said(blind, holds, dark, needs="any").verdict is Verdict.SUSPECT

    def test_what_was_learned_is_said_only_of_a_suspect(self) -> None:
        known = played(a_higher_learning_rate)
        holds, not_so = {"incident": {"kind": "ProcessExit"}}, {"incident": {"kind": "Hang"}}
        assert "Learned: change the cable" in said(known, holds, learned="change the cable").evidence
        assert "cable" not in said(known, not_so, learned="change the cable").evidence


def test_a_distilled_check_finds_the_same_fault_again_and_not_a_healthy_job() -> None:
    """Of every situation that has an incident: the check is read from its file, and run with the others."""
    kinds = set()
    for situation in (*SITUATIONS, *UNSEEN):
        known = played(situation.play)
        for incident in (known.incidents or ())[-1:]:
            check = runnable(read_check(written(distilled(incident)).encode(), "again.yaml"))
            (symptom,) = check.likely
            again = {each.id: each for each in examine(symptom, known, (check,))}[check.id]
            assert (again.verdict, incident.id in again.evidence) == (Verdict.SUSPECT, True), situation.says
            sound = {each.id: each for each in examine(symptom, played(healthy), (check,))}[check.id]
            assert sound.verdict is Verdict.FINE, situation.says
            kinds.add(incident.kind)
    assert len(kinds) >= 5


def test_words_of_a_job_are_text_in_a_distilled_check() -> None:
    incident = (played(a_higher_learning_rate).incidents or ())[-1]
    wild = replace(incident, cause="[*]?\n- evict: {node}\x00 'quoted' \"twice\"", id="inc-0009")
    check = read_check(written(distilled(wild)).encode(), "again.yaml")
    known = replace(played(a_higher_learning_rate), incidents=(wild,))
    assert looked(check, known).verdict is Verdict.SUSPECT
    assert looked(check, replace(known, incidents=(incident,))).verdict is Verdict.FINE
    assert "\n" not in check.title


@pytest.mark.parametrize("cause", ["[" * 300, "a" * 511 + "?b", "a" * 512, "a" * 513, "*" * 2000])
def test_a_long_cause_full_of_signs_is_told_by_its_beginning(cause: str) -> None:
    incident = replace((played(a_higher_learning_rate).incidents or ())[-1], cause=cause)
    check = read_check(written(distilled(incident)).encode(), "again.yaml")
    known = replace(played(a_higher_learning_rate), incidents=(incident,))
    assert looked(check, known).verdict is Verdict.SUSPECT
    other = replace(incident, cause=f"b{cause[1:]}")
    assert looked(check, replace(known, incidents=(other,))).verdict is Verdict.FINE


def test_further_checks_are_run_for_their_symptoms_alone() -> None:
    check = runnable(read_check(yaml.safe_dump(a_check(symptoms={"hung": 99})).encode(), "a.yaml"))
    known = played(healthy)
    assert "a-fault" in {each.id for each in examine(Symptom.HUNG, known, (check,))}
    assert "a-fault" not in {each.id for each in examine(Symptom.COST, known, (check,))}
