"""The page over a real run: watchdog, agents, launchers and workers of `holdfast run`, a console beside it, faults
from a script. One run for all tests here, in the order of its story.
"""

import json
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import WITHIN_MS, Browser, Log
from console_contract import check
from patience import patient
from playwright.sync_api import Page, expect
from server_process import ServerProcess, free_port

sys.path.append(str(Path(__file__).parents[1] / "integration" / "embedded"))

from embeddedrun import job_file, running, wait_until

from holdfast.cli.statedirectory import StateDirectory

JOB = "default/toy"
OPERATOR, VIEWER = "operator-of-the-browser-tests", "viewer-of-the-browser-tests"
SCRIPT = """
import sys, time
import torch, torch.distributed as dist
from holdfast.trainer import Run

run = Run()

def train(assignment):
    for step in range(1, 100000):
        dist.all_reduce(torch.ones(1))
        time.sleep(0.02)
        run.step(step, loss=2.0 + 1.0 / step, grad_norm=0.5)

run.enter(train)
"""
FAULTS = """
- {at: {step: 100}, do: kill-worker, rank: 1}
"""


@dataclass
class Live:
    """What runs. `heard` is when the console told of each incident first, in unix seconds."""

    state: StateDirectory
    console: ServerProcess
    url: str
    heard: dict[str, float] = field(default_factory=dict)

    def listen(self) -> None:
        """Notes what the console tells, as the page hears it; ends with the stream."""
        asked = urllib.request.Request(
            f"{self.url}api/v1/jobs/{JOB}/events", headers={"Authorization": f"Bearer {VIEWER}"}
        )
        with urllib.request.urlopen(asked, timeout=patient(60)) as stream:
            name = ""
            for line in stream:
                told = line.decode().rstrip()
                name = told.removeprefix("event: ") if told.startswith("event: ") else name
                if told.startswith("data: ") and name == "incident":
                    self.heard.setdefault(json.loads(told.removeprefix("data: "))["id"], time.time())

    def told(self, more: str = "") -> Any:
        asked = urllib.request.Request(
            f"{self.url}api/v1/jobs/{JOB}{more}", headers={"Authorization": f"Bearer {VIEWER}"}
        )
        with urllib.request.urlopen(asked, timeout=patient(10)) as answer:
            return json.loads(answer.read())

    def journal(self) -> str:
        """What the watchdog itself has recorded."""
        asked = urllib.request.Request(
            f"http://{watchdog_of(self.state)}/v1/jobs/{JOB}/journal",
            headers={"Authorization": f"Bearer {OPERATOR}"},
        )
        with urllib.request.urlopen(asked, timeout=patient(10)) as answer:
            return str(answer.read().decode())

    def answers(self) -> bool:
        try:
            self.told()
        except OSError:
            return False
        return True


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, warm_runs: None) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("run")
    job = job_file(folder, script=SCRIPT, nodes="{min: 1, max: 2, spares: 1}")
    (folder / "faults.yaml").write_text(FAULTS)
    state = StateDirectory(folder / "state")
    state.root.mkdir()
    state.token_file.write_text(f"{OPERATOR}\n{VIEWER} view\n")
    state.token_file.chmod(0o600)
    with running("run", job, "--no-console", "--state-dir", state.root, "--faults", folder / "faults.yaml"):
        wait_until(lambda: state.listening_at() is not None, "the watchdog")
        port = free_port()
        words = ("--token-file", state.token_file, "--listen", f"127.0.0.1:{port}")
        console = ServerProcess(
            "console",
            [sys.executable, "-m", "holdfast.console", "--watchdog", watchdog_of(state), *words],
            folder / "console.log",
        )
        console.start()
        served = Live(state, console, f"http://127.0.0.1:{port}/")
        try:
            console.wait_until(served.answers, patient(30))
            threading.Thread(target=served.listen, daemon=True).start()
            yield served
        finally:
            console.stop()


def watchdog_of(state: StateDirectory) -> str:
    at = state.listening_at()
    assert at is not None
    return f"{at.host}:{at.port}"


# Notes when the page shows an incident first, in unix seconds.
WATCH = """() => {
  window.seen = {};
  new MutationObserver(() => {
    const shown = document.querySelectorAll("#incident-list li");
    for (const each of shown) window.seen[each.dataset.key] ??= Date.now() / 1000;
  }).observe(document, {subtree: true, childList: true});
}"""


@pytest.fixture(scope="module")
def log_of_the_run() -> Log:
    return Log()


@pytest.fixture(scope="module")
def page(live: Live, browser: Browser, log_of_the_run: Log) -> Iterator[Page]:
    """The page of the operator, for all tests."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(WITHIN_MS)
    page = context.new_page()
    log_of_the_run.follow(page)
    page.add_init_script(f"({WATCH})()")
    page.goto(f"{live.url}#token={OPERATOR}")
    yield page
    context.close()


def test_the_run_is_shown(page: Page, live: Live) -> None:
    expect(page.locator("#job-phase")).to_have_text("Running", timeout=patient(60) * 1000)
    expect(page.locator("#rank-summary")).to_have_text("2 ranks: 2 fine", timeout=patient(20) * 1000)
    expect(page.locator(".fact[data-key='Ranks'] small")).to_have_text("2 of 2 nodes, 1 spare")


def test_an_incident_is_shown_within_a_second_of_the_console_having_it(page: Page, live: Live) -> None:
    page.locator(".incident").first.wait_for(timeout=patient(60) * 1000)
    seen = page.evaluate("window.seen")
    wait_until(lambda: set(seen) <= set(live.heard), "the console's own word of it")
    assert max(seen[each] - live.heard[each] for each in seen) < patient(1.0)


def test_its_story_tells_what_was_seen_done_and_why(page: Page, live: Live) -> None:
    expect(page.locator(".incident[data-state='Recovered']")).to_have_count(1, timeout=patient(60) * 1000)
    (incident,) = live.told()["incidents"]
    said = page.locator("#story").inner_text()
    assert f"{incident['id']}: ProcessExit of" in said
    for each in incident["evidence"]:
        assert f"{each['source']}: {each['says']}" in said
    for each in incident["actions"]:
        assert each["does"] in said
        assert f"because {each['reason']}" in said


def test_the_service_keeps_the_contract(live: Live) -> None:
    check(live.url, OPERATOR, JOB)


def test_an_operator_pauses_and_resumes_it(page: Page, live: Live) -> None:
    for action, phase in (("Pause", "Suspended"), ("Resume", "Running")):
        page.locator(f"[data-action={action}]").click()
        expect(page.locator("#forecast-says")).to_contain_text("It would be", timeout=WITHIN_MS)
        page.locator("#command-reason").fill("the browser tests")
        page.locator("#command-do").click()
        expect(page.locator("#command-outcome")).to_contain_text(f"{action}: Done", timeout=WITHIN_MS)
        expect(page.locator("#job-phase")).to_have_text(phase, timeout=patient(20) * 1000)
    assert live.journal().count("the browser tests (by ") >= 2


def test_a_viewer_may_not(live: Live, browser: Browser) -> None:
    context = browser.new_context()
    context.set_default_timeout(WITHIN_MS)
    page = context.new_page()
    page.goto(f"{live.url}#token={VIEWER}")
    expect(page.locator("#command-may")).to_be_visible(timeout=WITHIN_MS)
    page.locator("[data-action=Pause]").click()
    page.locator("#command-reason").fill("please")
    expect(page.locator("#forecast-says")).to_contain_text("It would be", timeout=WITHIN_MS)
    expect(page.locator("#command-do")).to_be_disabled()
    refused = page.evaluate(
        """async ([token, job]) => (await fetch(`api/v1/jobs/${job}/interventions`, {
          method: "POST", headers: {Authorization: `Bearer ${token}`, "Content-Type": "application/json"},
          body: JSON.stringify({id: "viewer", job, action: "Pause", reason: "all the same"})})).status""",
        [VIEWER, JOB],
    )
    assert refused == 403
    context.close()


def test_it_comes_back_after_console_and_watchdog_were_restarted(
    page: Page, live: Live, log_of_the_run: Log
) -> None:
    log_of_the_run.forgive += [
        "ERR_CONNECTION_REFUSED",
        "ERR_INCOMPLETE_CHUNKED_ENCODING",
        "503",
        "ERR_CONNECTION_RESET",
    ]
    live.console.kill()
    expect(page.locator("#stale")).to_contain_text("No connection to the console.")
    before = live.state.listening_at()
    assert before is not None
    os.kill(before.pid, signal.SIGKILL)
    wait_until(lambda: live.state.listening_at() != before, "another watchdog")
    live.console.start()
    live.console.wait_until(live.answers, patient(30))
    expect(page.locator("#connection")).to_have_text("live", timeout=patient(30) * 1000)
    expect(page.locator("#stale")).to_be_hidden()
    step = live.told()["line"]["step"]
    expect(page.locator(".incident[data-state='Recovered']")).not_to_have_count(0)
    wait_until(lambda: shown_step(page) > step, "a later step on the page")
    assert log_of_the_run.errors == []


def shown_step(page: Page) -> int:
    text = page.locator(".fact[data-key='Step'] dd b").inner_text()
    return int(text.replace(",", "")) if text != "?" else -1
