"""The document about an incident of a job whose watchdog is real, and that nothing a job wrote is markup in it."""

import html as htmllib
import re
from functools import cache
from html.parser import HTMLParser

from msgspec.structs import replace
from situations import a_higher_learning_rate, another_world, healthy
from watchedjob import JOB, WatchedJob

from holdfast.api.event import RunRecorded
from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import IncidentState
from holdfast.cli.casefile import case_of
from holdfast.cli.figures import Figures
from holdfast.cli.postmortem import html, markdown
from holdfast.cli.postmortem.case import Case
from holdfast.cli.postmortem.composing import postmortem, report
from holdfast.cli.postmortem.document import Bullets, Document, Heading, Paragraph, Picture, Table, Verbatim, cut
from holdfast.cli.postmortem.pace import PEERS_LEAST, TARGETS_S, remarks
from holdfast.cli.postmortem.phases import Phase, Stage, phases_of
from holdfast.cli.postmortem.plot import svg, thinned
from holdfast.cli.postmortem.timeline import Sort, timeline_of
from holdfast.cli.watchdogclient import WatchdogClient
from holdfast.cli.watchdogsource import WatchdogSource

WILD = (
    "<script>alert(1)</script>](javascript:x) `id` | **b** ![i](http://evil/x.png) &amp; \x1b[2J\n\n# head\n- item"
)


@cache
def case_after(play: object) -> Case:
    assert callable(play)
    job = play()
    assert isinstance(job, WatchedJob)
    return case_of(WatchdogSource(WatchdogClient(job, JOB)))


def heard(case: Case) -> Case:
    """The same with figures, one point a second."""
    began = case.journal[0].at
    at = tuple(began + second for second in range(int(case.now - began)))
    steps = tuple(float(place) for place in range(len(at)))
    loss = tuple(4.0 - 0.01 * place for place in range(len(at)))
    same = tuple(1.0 for _ in at)
    return replace(case, figures=Figures(at, steps, loss, same, same, same), unread=())


def text_of(case: Case) -> str:
    return markdown.written(postmortem(case, case.incidents[-1]))


class TestWhatIsInIt:
    def test_every_part_is_there_with_what_is_known(self) -> None:
        case = case_after(a_higher_learning_rate)
        told = text_of(case)
        for part in (
            *("Timeline", "Cause", "Detection", "What was done", "Cost", "What could have been faster"),
            *("What had changed before", "Figures", "To look further"),
        ):
            assert f"\n## {part}\n" in told
        assert "Certain that node b rank 3 is the culprit" in told
        assert "10 steps were lost" in told
        assert "| ComputedAgain | 0.0224 |" in told
        assert "10 ms after" in told

    def test_that_nobody_heard_figures_is_said(self) -> None:
        told = text_of(case_after(a_higher_learning_rate))
        assert "Nobody heard loss, tokens/s, s in this time" in told
        assert "no console is known here" in told
        assert told.count("<svg") == 1, "steps are journaled"

    def test_figures_that_were_heard_are_plotted_and_told_in_words(self) -> None:
        told = text_of(heard(case_after(a_higher_learning_rate)))
        assert told.count("<svg") == 4
        assert "Nobody heard" not in told
        assert re.search(r"Loss, median of the ranks: [\d.]+ before, [\d.]+ after\.", told)

    def test_what_changed_before_is_told_of_the_newest_round_that_was_started_otherwise(self) -> None:
        def changed_and_died() -> WatchedJob:
            job = a_higher_learning_rate()
            job.die(1)
            return job.train(20)

        told = text_of(case_after(changed_and_died))
        assert "| configuration | lr | 0.0003 | 0.003 |" in told

    def test_an_incident_whose_culprit_nobody_knows_says_so(self) -> None:
        case = case_after(a_higher_learning_rate)
        unknown = replace(
            case.incidents[-1], confidence=Confidence.UNKNOWN, culprit=Subject(JOB), known_at=None, error=""
        )
        told = markdown.written(postmortem(replace(case, incidents=(unknown,)), unknown))
        assert "The culprit is not known: Unknown: nobody can be named" in told
        assert "Cause known never (target 15 min)" in told

    def test_one_that_is_open_has_no_end_and_is_no_judgement(self) -> None:
        case = case_after(a_higher_learning_rate)
        incident = replace(case.incidents[-1], state=IncidentState.OPEN, recovered_at=None, lost_steps=None)
        told = text_of(replace(case, incidents=(incident,)))
        assert "| recovering | goes on |" in told or "| loading | goes on |" in told
        assert "No new step was seen since" in told

    def test_of_one_that_is_over_nothing_goes_on_though_its_first_step_was_not_seen(self) -> None:
        case = case_after(a_higher_learning_rate)
        incident = replace(case.incidents[-1], recovered_at=None, lost_steps=None)
        told = text_of(replace(case, incidents=(incident,)))
        assert "goes on" not in told
        assert "its end was not seen" in told

    def test_marks_of_pictures_are_told_of_where_there_is_one(self) -> None:
        case = replace(case_after(a_higher_learning_rate), journal=())
        assert "Broken lines" not in text_of(case)
        assert "Broken lines" in text_of(case_after(a_higher_learning_rate))

    def test_of_rounds_that_told_nothing_nobody_says_that_they_were_alike(self) -> None:
        case = case_after(a_higher_learning_rate)
        untold = tuple(each for each in case.journal if not isinstance(each.event, RunRecorded))
        assert "did not tell how they were started" in text_of(replace(case, journal=untold))

    def test_without_journal_and_ledger_there_is_a_document_that_says_so(self) -> None:
        case = replace(case_after(a_higher_learning_rate), journal=(), ledger=None, unread=("The journal: gone.",))
        told = text_of(case)
        assert "Unknown: the ledger could not be read" in told
        assert "Unknown: the journal tells of no round" in told
        assert "The journal: gone." in told

    def test_all_of_a_day_are_in_one_document(self) -> None:
        case = case_after(another_world)
        told = markdown.written(report(case, case.incidents, case.now - 86400.0))
        assert all(f"\n## {each.id}: " in told for each in case.incidents)
        none = markdown.written(report(case_after(healthy), (), 0.0))
        assert "There was none." in none


class TestWords:
    def wild(self) -> Case:
        case = case_after(a_higher_learning_rate)
        incident = replace(
            case.incidents[-1],
            cause=WILD,
            error=f"Traceback\n```\n{WILD}\n````\n",
            note=WILD,
            culprit=Subject(JOB, node=WILD),
            evidence=(replace(case.incidents[-1].evidence[0], source=WILD, says=WILD),),
            actions=(replace(case.incidents[-1].actions[0], does=WILD, reason=WILD),),
        )
        return replace(case, job=f"a/{WILD}", incidents=(incident,), unread=(WILD,))

    def test_no_tag_and_no_attribute_of_a_job_is_in_the_page(self) -> None:
        case = self.wild()
        page = html.written(postmortem(case, case.incidents[0]))
        seen = _Tags()
        seen.feed(page)
        assert seen.names <= {
            *(
                "html",
                "head",
                "meta",
                "title",
                "style",
                "body",
                "h1",
                "h2",
                "p",
                "ul",
                "li",
                "table",
                "thead",
                "tbody",
            ),
            *("tr", "th", "td", "pre", "figure", "figcaption", "svg", "line", "text", "polyline", "circle"),
        }
        assert seen.loads == set(), "it asks no host for anything"
        assert "alert(1)" in seen.words
        assert "\x1b" not in page

    def test_the_page_forbids_itself_to_load_and_to_run_anything(self) -> None:
        page = html.written(Document("a", ()))
        assert htmllib.escape("default-src 'none'") in page

    def test_nothing_of_a_job_is_markup_in_markdown(self) -> None:
        case = self.wild()
        told = markdown.written(postmortem(case, case.incidents[0]))
        fenced = re.sub(r"(`{3,})text\n.*?\n\1\n", "", told, flags=re.DOTALL)
        pictured = re.sub(r"<svg.*?</svg>", "", fenced, flags=re.DOTALL)
        for live in (
            r"(?<!\\)<",
            r"(?<!\\)`",
            r"(?<!\\)\*",
            r"(?<!\\)\[",
            r"http://",
            r"(?m)^# head",
            r"(?m)^- item",
        ):
            assert re.search(live, pictured) is None, live
        widths = {len(re.split(r"(?<!\\)\|", line)) for line in pictured.splitlines() if line.startswith("| 2023")}
        assert widths == {6}, "words of a job make no cells: there are four in the timeline and in what was done"
        assert "\x1b" not in told

    def test_a_fence_is_longer_than_any_within(self) -> None:
        assert markdown.written(Document("", (Verbatim("a\n````\nb"),))).startswith("`````text\n")

    def test_lines_begin_no_list_rule_or_heading(self) -> None:
        for text in ("- a", "+ a", "1. a", "1) a", "---", "===", "# a", "> a"):
            written = markdown.written(Document("", (Paragraph(text),)))
            assert re.match(r"\\|\d+\\", written), written
        assert markdown.written(Document("", (Paragraph("1.5 s"),))) == "1.5 s\n"

    def test_an_address_becomes_no_link_where_github_makes_one_of_any_text(self) -> None:
        for text in ("me@example.org", "mailto:me@example.org", "@somebody"):
            for block in (Paragraph(text), Bullets((text,)), Table((text,), ((text,),)), Heading(2, text)):
                written = markdown.written(Document("", (block,)))
                assert re.search(r"@(?!<!-- -->)", written) is None, written

    def test_every_block_is_written_in_both(self) -> None:
        blocks = (
            Heading(2, "a"),
            Paragraph("b"),
            Bullets(("c",)),
            Table(("d",), (("e",),)),
            Verbatim("f"),
            Picture("<svg></svg>", "g"),
        )
        for written in (html.written(Document("t", blocks)), markdown.written(Document("t", blocks))):
            assert all(letter in written for letter in "abcdefg")

    def test_what_is_long_is_cut_and_says_so(self) -> None:
        assert cut("a" * 5000) == f"{'a' * 4000}... (5000 characters)"


class _Tags(HTMLParser):
    """The tags of a page, what they would load, and the words between."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.loads: set[str] = set()
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.loads |= {name for name, _ in attrs if name in ("src", "href", "srcset", "data", "action", "onload")}

    def handle_data(self, data: str) -> None:
        self.words += data


class TestPhases:
    def test_they_follow_one_another_from_the_fault_to_the_new_step(self) -> None:
        case = case_after(another_world)
        incident = case.incidents[-1]
        found = {each.stage: each for each in phases_of(incident, case.journal)}
        assert found[Stage.DETECTING].took_s == incident.time_to_detect_s
        healing = found.get(Stage.LOADING, found.get(Stage.RECOVERING))
        assert healing is not None
        assert healing.ended == incident.recovered_at

    def test_without_the_journal_forming_and_loading_are_one(self) -> None:
        case = case_after(another_world)
        stages = [each.stage for each in phases_of(case.incidents[-1], ())]
        assert stages == [Stage.DETECTING, Stage.KNOWING, Stage.DECIDING, Stage.RECOVERING]

    def test_steps_that_were_lost_are_reckoned_at_the_pace_of_before(self) -> None:
        case = case_after(a_higher_learning_rate)
        again = phases_of(case.incidents[-1], case.journal)[-1]
        assert again.stage is Stage.COMPUTING_AGAIN
        assert again.took_s is not None
        assert abs(again.took_s - 10.0) < 0.5, "ten steps of a second"


class TestPace:
    def test_a_phase_beyond_its_target_is_told_with_what_would_help(self) -> None:
        case = case_after(another_world)
        incident, policy = case.incidents[-1], case.policy
        for stage, target_s in TARGETS_S.items():
            late = remarks(incident, (Phase(stage, 0.0, target_s + 1.0),), (), policy)
            assert [each.stage for each in late] == [stage]
            assert late[0].says
            assert remarks(incident, (Phase(stage, 0.0, target_s),), (), policy) == ()

    def test_a_phase_clearly_longer_than_in_other_incidents_is_told(self) -> None:
        case = case_after(another_world)
        incident = case.incidents[-1]
        others = [(Phase(Stage.LOADING, 0.0, took),) for took in (4.0, 5.0, 6.0)]
        assert len(others) == PEERS_LEAST
        (late,) = remarks(incident, (Phase(Stage.LOADING, 0.0, 8.0),), others, case.policy)
        assert (late.usual_s, late.took_s) == (5.0, 8.0)
        assert remarks(incident, (Phase(Stage.LOADING, 0.0, 7.0),), others, case.policy) == ()
        assert remarks(incident, (Phase(Stage.LOADING, 0.0, 8.0),), others[:2], case.policy) == ()

    def test_a_phase_that_goes_on_and_a_kind_that_is_looked_at_for_a_while_are_not_judged(self) -> None:
        case = case_after(another_world)
        incident = case.incidents[-1]
        assert remarks(incident, (Phase(Stage.LOADING, 0.0, None),), (), None) == ()
        hot = replace(incident, kind=FindingKind.THERMAL)
        assert remarks(hot, (Phase(Stage.DETECTING, 0.0, 100.0),), (), None) == ()

    def test_a_setting_that_the_job_has_already_is_not_advised(self) -> None:
        case = case_after(another_world)
        incident, policy = case.incidents[-1], case.policy
        assert policy is not None
        long = (Phase(Stage.FORMING, 0.0, 100.0),)
        assert remarks(incident, long, (), replace(policy, spares=0))[0].setting == "nodes.spares"
        assert remarks(incident, long, (), replace(policy, spares=1))[0].setting != "nodes.spares"


def test_a_timeline_is_in_order_and_says_nothing_twice() -> None:
    case = case_after(a_higher_learning_rate)
    lines = timeline_of(case.incidents[-1], case.journal, case.now)
    assert [each.at for each in lines] == sorted(each.at for each in lines)
    assert len(set(lines)) == len(lines)
    assert {Sort.SEEN, Sort.DECIDED, Sort.DONE} <= {each.sort for each in lines}


class TestPlots:
    SPAN = (0.0, 100.0)

    def test_a_line_is_broken_where_nothing_was_heard(self) -> None:
        points = [(float(at), 1.0) for at in (*range(20), *range(60, 80))]
        assert svg(points, self.SPAN, {}, "s").count("<polyline") == 2

    def test_of_many_points_each_spike_stays(self) -> None:
        points = [(at / 100, 1.0) for at in range(9000)]
        points[4321] = (43.21, 99.0)
        assert (43.21, 99.0) in thinned(points)
        assert len(thinned(points)) <= 720

    def test_there_is_a_picture_of_one_point_of_none_and_of_what_is_not_finite(self) -> None:
        assert "<circle" in svg([(50.0, 2.0)], self.SPAN, {}, "s")
        for points in ([], [(50.0, float("nan"))], [(500.0, 1.0)]):
            drawn = svg(points, self.SPAN, {"began": 50.0, "detected": 200.0}, "s")
            assert "<polyline" not in drawn
            assert "nan" not in drawn
            assert drawn.count("stroke-dasharray") == 1, "what is outside is not marked"

    def test_it_is_one_block_of_markup_for_markdown(self) -> None:
        drawn = svg([(1.0, 2.0), (2.0, 3.0)], self.SPAN, {"recovered": 50.0}, "s")
        assert "\n\n" not in drawn
        assert drawn.splitlines()[0].endswith(">")
