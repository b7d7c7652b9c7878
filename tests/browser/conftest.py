"""A browser for all tests here, and a page of its own for each. What its log says is an error of the test."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fixtures import warm_parents, warm_runs
from patience import patient
from playwright.sync_api import Browser, Page, expect, sync_playwright
from scripted_job import ScriptedJob

sys.path.append(str(Path(__file__).parent))

from chromium import FLAGS, chromium
from fake_console import OPERATOR, FakeConsole, serving
from network import leave_for_a_network_of_its_own

__all__ = ["warm_parents", "warm_runs"]
WITHIN_MS = patient(5.0) * 1000
expect.set_options(timeout=WITHIN_MS)

Open = Callable[..., Page]
"""A page in the browser: `open_page(url, width=, height=, scheme=)`."""


def pytest_configure() -> None:
    leave_for_a_network_of_its_own()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        yield started
        started.close()


class Log:
    """What the browser says of the pages: errors in scripts, requests that failed, rules of the policy broken.

    `forgive` are parts of what a test brings about itself.
    """

    def __init__(self) -> None:
        self.said: list[str] = []
        self.hosts: set[str] = set()
        self.forgive: list[str] = []

    def follow(self, page: Page) -> None:
        page.on("console", lambda m: self.said.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))

    @property
    def errors(self) -> list[str]:
        return [each for each in self.said if not any(part in each for part in self.forgive)]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def open_page(browser: Browser, log: Log) -> Iterator[Open]:
    contexts = []

    def open_(url: str, *, width: int = 1280, height: int = 900, scheme: str = "dark") -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,  # type: ignore[arg-type]
            reduced_motion="reduce",
        )
        context.set_default_timeout(WITHIN_MS)
        contexts.append(context)
        page = context.new_page()
        log.follow(page)
        page.goto(url)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert log.errors == []


@pytest.fixture
def job() -> ScriptedJob:
    return ScriptedJob.of(nodes=12, racks=3, points=300)


@pytest.fixture
def console(job: ScriptedJob) -> Iterator[FakeConsole]:
    with serving(job) as served:
        yield served


@pytest.fixture
def shown(console: FakeConsole, open_page: Open) -> Page:
    """The job as an operator sees it, once everything of it is there."""
    page = open_page(f"{console.url}#token={OPERATOR}")
    page.locator("#worst-ranks tr").first.wait_for()
    return page
