"""The page in a browser, over a console with scripted data: what it shows, to whom, and how it is reached."""

import json
import os
import time
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
from conftest import Log, Open
from fake_console import OPERATOR, VIEWER, FakeConsole, serving
from patience import patient
from playwright.sync_api import Page, expect
from scripted_job import ScriptedJob, incident_of_a_lost_gpu

from holdfast.api.finding import Evidence
from holdfast.api.incident import Action, IncidentState, Moment, Rung

PICTURES = os.environ.get(
    "HOLDFAST_PICTURES"
)  # a folder for the pictures of the documents; made only when asked for
AXE = (files("axe_playwright_python") / "axe.min.js").read_text()


def told(console: FakeConsole, job: ScriptedJob) -> None:
    """What changed is said to the page, as the console does."""
    for incident in job.incidents:
        console.tell("incident", msgspec.to_builtins(incident))
    console.tell("ranks", job.told)
    console.tell_job()


# What is shown.


def test_the_job_stands_in_one_line(shown: Page, job: ScriptedJob) -> None:
    line = shown.locator(".line")
    expect(line.locator("#job-phase")).to_have_text("Running")
    facts = {name: line.locator(f".fact[data-key='{name}'] dd b").inner_text() for name in FACTS}
    assert facts == {name: words(job) for name, words in FACTS.items()}


FACTS: Mapping[str, Callable[[ScriptedJob], str]] = {
    "Step": lambda job: f"{job.step:,} of 100,000",
    "Tokens/s": lambda job: f"{job.points[-1]['tokens_s'] / 1e6:.3g}M",
    "MFU": lambda job: f"{job.points[-1]['mfu']:.1%}",
    "ETTR": lambda _: "97.3%",
    "Time left": lambda _: "1 d 8 h",
    "Money": lambda _: "1,536 USD/h",
    "Ranks": lambda _: "96",
}


def test_what_nobody_knows_is_a_question_mark(console: FakeConsole, open_page: Open, job: ScriptedJob) -> None:
    whole = job.document()
    unknown = {**whole, "line": {**dict.fromkeys(whole["line"]), "phase": "Pending"}, "status": None}
    job.document = lambda: unknown  # type: ignore[method-assign]
    page = open_page(f"{console.url}#token={OPERATOR}")
    expect(page.locator("#job-phase")).to_have_text("Pending")
    for name in ("Step", "Tokens/s", "MFU", "ETTR", "Time left", "Money"):
        expect(page.locator(f".fact[data-key='{name}'] dd b")).to_have_text("?")


def test_a_new_incident_is_seen_at_once_heard_and_marked(
    shown: Page, console: FakeConsole, job: ScriptedJob
) -> None:
    incident = job.break_node(5)
    began = time.monotonic()
    told(console, job)
    expect(shown.locator(".incident[data-state='Open']")).to_contain_text("GpuLost")
    assert time.monotonic() - began < patient(1.0)
    expect(shown.locator("#announcer")).to_have_text(
        f"New incident {incident.id}: GpuLost, node node-0005 GPU GPU-3f2a9c41"
    )
    expect(shown).to_have_title("1 open incident · Recovering · ml/llm-70b · Holdfast")
    expect(shown.locator(".plot-mark")).to_have_count(1)
    expect(shown.locator("#rank-summary")).to_have_text("96 ranks: 8 faulty, 88 fine")
    expect(shown.locator("#worst-ranks tr").first).to_contain_text("× faulty")


def test_what_is_open_is_told_before_what_is_newer_and_over(
    shown: Page, console: FakeConsole, job: ScriptedJob
) -> None:
    opened = job.break_node(5)
    paged = incident_of_a_lost_gpu(job.name, "node-0001", time.time(), id="incident-8", state=IncidentState.PAGED)
    job.incidents += [paged, incident_of_a_lost_gpu(job.name, "node-0002", time.time() + 1.0, id="incident-9")]
    told(console, job)
    expect(shown.locator("#story-title")).to_contain_text(f"{opened.id}: GpuLost of node node-0005")
    expect(shown.locator("#incidents-count")).to_have_text("1 open, 1 paged, 3 in all")


def test_in_a_new_round_ranks_are_named_by_the_nodes_that_they_are_on_then(
    shown: Page, console: FakeConsole, job: ScriptedJob
) -> None:
    """A spare that takes a node's place may take its number, too."""
    expect(shown.locator("#rank-summary")).to_have_text("96 ranks: 96 fine")
    job.nodes[5] = "spare-0001"
    job.break_node(5)  # in its round 13
    told(console, job)
    expect(shown.locator("#worst-ranks tr").first).to_contain_text("spare-0001")


def test_the_story_of_an_incident_tells_evidence_actions_and_why_in_order(
    shown: Page, console: FakeConsole, job: ScriptedJob
) -> None:
    job.incidents.append(incident_of_a_lost_gpu(job.name, "node-0002", time.time() - 60))
    told(console, job)
    entries = shown.locator("#story-list li")
    expect(entries).to_have_count(8)
    said = [each.split("\n") for each in entries.all_inner_texts()]
    assert [each[1] for each in said] == [
        "began",
        "evidence",
        "evidence",
        "detected",
        "action",
        "then",
        "then",
        "recovered",
    ]
    assert said[4][0] == "+0.32 s"
    assert said[4][3].startswith("because XID 79 asks for another node")
    expect(shown.locator("#story-costs")).to_contain_text("8.4 s")
    expect(shown.locator("#story-error-text")).to_contain_text("fallen off the bus")


def test_a_mark_on_the_plots_opens_its_incident(shown: Page, console: FakeConsole, job: ScriptedJob) -> None:
    for name, ago_s in (("incident-1", 400.0), ("incident-2", 100.0)):
        job.incidents.append(incident_of_a_lost_gpu(job.name, "node-0002", time.time() - ago_s, id=name))
    told(console, job)
    expect(shown.locator("#story-title")).to_contain_text("incident-2")
    shown.locator(".plot-mark").first.click()
    expect(shown.locator("#story-title")).to_contain_text("incident-1")
    expect(shown.locator("#story-title")).to_be_focused()
    assert "incident=incident-1" in shown.url


def test_a_mark_stands_at_its_time_whatever_time_is_shown(open_page: Open) -> None:
    job = ScriptedJob.of(nodes=2)  # of 50 minutes
    job.incidents.append(incident_of_a_lost_gpu(job.name, "node-0001", time.time() - 600.0))
    with serving(job) as console:
        shown = open_page(f"{console.url}#token={OPERATOR}")
        expect(shown.locator(".plot-mark")).to_have_count(1)
        shown.locator("#plot-spans button", has_text="15 min").click()
        shown.evaluate("() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")
        share = shown.evaluate("""() => {
      const over = document.querySelector(".u-over").getBoundingClientRect();
      const mark = document.querySelector(".plot-mark").getBoundingClientRect();
      return (mark.left + mark.width / 2 - over.left) / over.width;
    }""")
        shown.close()  # before its console goes
    assert share == pytest.approx(1.0 / 3.0, abs=0.05)


def test_nodes_in_trouble_come_first_and_say_why(shown: Page, console: FakeConsole, job: ScriptedJob) -> None:
    job.break_node(9)
    told(console, job)
    first = shown.locator("#node-rows tr").first
    expect(first).to_contain_text("node-0009")
    expect(first).to_contain_text("× xid 79: fell off the bus")
    shown.locator("#node-filter").fill("r000")
    expect(shown.locator("#nodes-view tbody tr")).to_have_count(4)


def test_an_empty_job_says_what_will_come(console: FakeConsole, open_page: Open) -> None:
    console.job = ScriptedJob.of(nodes=0, points=0)
    page = open_page(f"{console.url}#token={OPERATOR}")
    for part in ("incidents", "plots", "ranks", "nodes"):
        expect(page.locator(f"#{part} .empty")).to_be_visible()


def test_the_runbook_tells_its_checks_and_says_where_there_is_none(
    shown: Page, console: FakeConsole, log: Log
) -> None:
    log.forgive.append("404")
    shown.locator("#runbook-form button").click()
    expect(shown.locator("#runbook-says")).to_have_text("Not available: this console has no runbook")
    check = {"id": "links", "title": "Do links flap?", "evidence": "eth2 went down 3 times"}
    fine = {"id": "heat", "title": "Is it hot?", "verdict": "fine", "evidence": "58 °C at most", "next": ""}
    console.runbook = {"checks": [fine, {**check, "verdict": "suspect", "next": "look at the switch"}]}
    shown.locator("#symptom").select_option("slow")
    shown.locator("#runbook-form button").click()
    expect(shown.locator("#runbook-says")).to_have_text("2 checks for slow, 1 suspect")
    expect(shown.locator(".checks li").first).to_contain_text("Next: look at the switch")


# Who may do what.


def test_an_operator_sees_what_would_happen_then_does_it(shown: Page, console: FakeConsole) -> None:
    shown.locator("[data-action=Evict]").click()
    expect(shown.locator("#command-do")).to_be_disabled()
    shown.locator("#command-node").fill("node-0003")
    expect(shown.locator("#forecast")).to_contain_text("it restores step")
    expect(shown.locator("#command-do")).to_be_disabled()
    expect(shown.locator("#command-why-not")).to_have_text("Write why: it stays in the record.")
    assert console.asked == []
    shown.locator("#command-reason").fill("XID 79 twice today")
    shown.locator("#command-do").click()
    expect(shown.locator("#command-outcome")).to_have_text("Evict node: Done: Evict was done")
    (asked,) = console.asked
    assert {**asked, "id": None} == {
        "id": None,
        "job": "ml/llm-70b",
        "action": "Evict",
        "node": "node-0003",
        "reason": "XID 79 twice today (by olga, console)",
    }
    expect(shown.locator("[data-action=Evict]")).to_be_focused()


def test_a_command_whose_answer_is_lost_is_asked_again_as_the_same_one(
    shown: Page, console: FakeConsole, log: Log
) -> None:
    log.forgive.append("503")
    console.loses_answers = 1
    shown.locator("[data-action=Pause]").click()
    shown.locator("#command-reason").fill("power work at noon")
    shown.locator("#command-do").click()
    expect(shown.locator("#command-outcome")).to_contain_text("the watchdog does not answer")
    expect(shown.locator("#command-outcome")).to_have_text("Pause: Done: Pause was done")
    first, second = console.asked
    assert first == second


def test_what_the_watchdog_would_refuse_is_not_asked(shown: Page, console: FakeConsole) -> None:
    shown.locator("[data-action=Resume]").click()
    shown.locator("#command-reason").fill("go on")
    expect(shown.locator("#forecast-says")).to_have_text("It would be Refused: the job is not paused")
    expect(shown.locator("#command-do")).to_be_disabled()
    assert console.asked == []


def test_a_viewer_cannot_command_and_is_told_why(console: FakeConsole, open_page: Open) -> None:
    page = open_page(f"{console.url}#token={VIEWER}")
    expect(page.locator("#command-may")).to_contain_text('viktor needs the role "operate"')
    page.locator("[data-action=Checkpoint]").click()
    page.locator("#command-reason").fill("please")
    expect(page.locator("#forecast-says")).to_contain_text("It would be Done")
    expect(page.locator("#command-do")).to_be_disabled()
    page.locator("#command-reason").press("Enter")
    expect(page.locator("#command-why-not")).to_have_text("You may not give commands to this job.")
    assert console.asked == []


def test_without_a_token_one_is_asked_for_and_the_address_keeps_none(
    console: FakeConsole, open_page: Open, log: Log
) -> None:
    log.forgive.append("401")
    page = open_page(console.url)
    expect(page.locator("#sign-in")).to_be_visible()
    page.locator("#token").fill("wrong")
    page.locator("#token").press("Enter")
    expect(page.locator("#sign-in-why")).to_contain_text("valid token")
    page.locator("#token").fill(OPERATOR)
    page.locator("#token").press("Enter")
    expect(page.locator("#job-phase")).to_have_text("Running")
    assert OPERATOR not in page.url
    expect(page.locator("#sign-in")).to_be_hidden()


def test_the_token_of_the_address_leaves_it(shown: Page) -> None:
    assert shown.url.endswith("#job=ml/llm-70b")


# When it is not true any more.


def test_it_says_that_it_is_stale_and_comes_back_by_itself(
    shown: Page, console: FakeConsole, job: ScriptedJob, log: Log
) -> None:
    log.forgive += ["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET"]
    console.stop()
    expect(shown.locator("#stale")).to_contain_text("No connection to the console.")
    expect(shown.locator("#stale")).to_contain_text("ago.")
    expect(shown.locator("#connection")).to_have_text("reconnecting")
    job.break_node(3)
    console.start()
    expect(shown.locator("#stale")).to_be_hidden()
    expect(shown.locator("#connection")).to_have_text("live")
    expect(shown.locator(".incident[data-state='Open']")).to_have_count(1)


def test_a_silent_watchdog_is_told_with_how_long(shown: Page, console: FakeConsole, job: ScriptedJob) -> None:
    job.is_silent = True
    job.heard_at = time.time() - 75.0
    console.tell_job()
    expect(shown.locator("#stale")).to_contain_text("hears nothing from the watchdog")
    expect(shown.locator("#stale")).to_contain_text("1 min")
    job.is_silent = False
    console.tell_job()
    expect(shown.locator("#stale")).to_be_hidden()


# What is hostile.

HOSTILE = '<img src=x onerror="window.broken=1"><script>window.broken=1</script>\u202egnp.\x1b[31m"\'&amp;'


def test_text_of_a_job_is_never_html(console: FakeConsole, open_page: Open, job: ScriptedJob, log: Log) -> None:
    job.name = f"ml/{HOSTILE.replace(chr(47), chr(92))}"  # a name has no slash
    job.nodes[5], job.racks[5], job.reason = HOSTILE, HOSTILE, HOSTILE
    hostile = incident_of_a_lost_gpu(
        job.name,
        HOSTILE,
        time.time() - 5,
        id=HOSTILE,
        cause=HOSTILE,
        error=HOSTILE,
        note=HOSTILE,
        evidence=(Evidence(HOSTILE, HOSTILE, 1.0),),
        actions=(Action(Rung.SWAP, 2.0, HOSTILE, HOSTILE),),
        timeline=(Moment(3.0, HOSTILE),),
    )
    job.incidents.append(hostile)
    console.runbook = {"checks": [dict.fromkeys(("id", "title", "verdict", "evidence", "next"), HOSTILE)]}
    page = open_page(f"{console.url}#token={OPERATOR}")
    page.locator("#worst-ranks tr").first.wait_for()
    page.locator("#runbook-form button").click()
    page.locator(".checks li").wait_for()
    page.locator("#story-ways button").first.click()
    expect(page.locator("#forecast-says")).to_contain_text("Evict is done")
    assert page.evaluate("window.broken") is None
    assert page.locator("main img, main script").count() == 0
    shown = page.locator("main").inner_text()
    assert '<img src=x onerror="window.broken=1">' in shown
    assert "\u202e" not in shown
    assert "\x1b" not in shown


def test_nothing_is_asked_of_another_host(shown: Page, console: FakeConsole, log: Log) -> None:
    assert log.hosts == {f"127.0.0.1:{console.port}"}


# For everybody.


@pytest.mark.parametrize(
    ("token", "scheme", "width"),
    [(OPERATOR, "dark", 1280), (OPERATOR, "light", 1280), (VIEWER, "dark", 360)],
    ids=["dark", "light", "phone"],
)
def test_axe_finds_nothing(
    console: FakeConsole, open_page: Open, job: ScriptedJob, token: str, scheme: str, width: int
) -> None:
    job.break_node(2, IncidentState.RECOVERED)
    job.break_node(5)
    page = open_page(f"{console.url}#token={token}", width=width, scheme=scheme)
    page.locator("#worst-ranks tr").first.wait_for()
    page.locator("[data-action=Evict]").click()
    page.locator("#command-node").fill("node-0005")
    page.locator("#command-reason").fill("XID 79 twice today")
    expect(page.locator("#forecast-says")).to_contain_text("It would be")
    assert violations(page) == {}
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if PICTURES:
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=Path(PICTURES) / f"page-{'phone' if width < 500 else scheme}.png")


def test_axe_would_find_something(shown: Page) -> None:
    shown.evaluate("document.querySelector('label.pick').remove()")
    shown.evaluate("document.querySelector('.top').append(document.createElement('select'))")
    assert "select-name" in violations(shown)


def violations(page: Page) -> Mapping[str, list[str]]:
    """What axe-core says is wrong, by rule."""
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return {each["id"]: [node["html"][:200] for node in each["nodes"]] for each in found}


def test_the_keyboard_alone_reaches_everything(shown: Page, console: FakeConsole, job: ScriptedJob) -> None:
    shown.keyboard.press("Tab")
    expect(shown.locator(".skip")).to_be_focused()
    reached = walk(shown)
    assert [each for each in WAYS if each not in reached] == []
    shown.locator("#rank-grid [tabindex='0']").focus()
    shown.keyboard.press("ArrowRight")
    expect(shown.locator("#rank-tip")).to_contain_text("rank 1 on node-0000, rack r000: fine")
    shown.keyboard.press("ArrowDown")
    focused = shown.locator("#rank-grid [role=gridcell]:focus")
    expect(focused).to_contain_text("node-")
    assert shown.locator("#rank-grid [tabindex='0']").count() == 1


WAYS = ("job-pick", "theme", "plot-stack", "symptom", "rank-by", "rank-zoom+", "Evict", "gridcell", "1 h")


def walk(page: Page) -> list[str]:
    """Every stop of the Tab key, by id, action, role or text; each has a ring that is seen."""
    reached: list[str] = []
    for _ in range(120):
        page.keyboard.press("Tab")
        stop = json.loads(page.evaluate(STOP))
        if stop is None or stop["name"] in reached[:1]:
            break
        assert stop["ring"], stop
        reached.append(stop["name"])
    return reached


STOP = """() => {
  const at = document.activeElement;
  if (!at || at === document.body) return "null";
  const style = getComputedStyle(at.getAttribute("role") === "gridcell" ? at.closest(".map") : at);
  const name = at.id || at.dataset.action || at.getAttribute("role") || at.textContent.trim();
  return JSON.stringify({name, ring: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0});
}"""


def test_the_plots_can_be_read_by_arrow_keys(shown: Page, job: ScriptedJob) -> None:
    shown.locator("#plot-stack").focus()
    shown.keyboard.press("Home")
    expect(shown.locator("#plot-cursor")).to_contain_text(f"step {job.points[0]['step']:,}")
    shown.keyboard.press("ArrowRight")
    expect(shown.locator("#plot-cursor")).to_contain_text(f"step {job.points[1]['step']:,}")
    shown.keyboard.press("Escape")
    expect(shown.locator("#plot-cursor")).to_contain_text("newest")


def test_the_theme_is_kept(shown: Page) -> None:
    dark = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    shown.locator("#theme").click()
    expect(shown.locator("#theme")).to_have_text("Theme: light")
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    shown.reload()
    expect(shown.locator("#theme")).to_have_text("Theme: light")
