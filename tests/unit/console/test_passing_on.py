"""What the application hands on to the watchdog, and what it keeps from it; and a stream nobody vouches for."""

from typing import cast

import httpx
import msgspec
import pytest
from test_columns import JOB, heard, looked, sample

from holdfast.api.errors import Unavailable
from holdfast.api.feed import Pulse, Whoami
from holdfast.console.feed import Feed
from holdfast.console.serving.application import Console, make_application
from holdfast.wire.access import Access, Address, Credential
from holdfast.wire.http import WatchdogHttp

PATH = f"/api/v1/jobs/{JOB}/interventions"
FORM = "text/plain;charset=UTF-8"


class Watchdog:
    """One that says yes to everything; `asked` is what it was asked, and by whose token."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str | None]] = []

    async def answered(
        self, method: str, path: str, body: bytes | None = None, token: str | None = None
    ) -> tuple[int, bytes]:
        self.asked.append((method, path, token))
        return 200, msgspec.json.encode(Whoami("olga", ("view", "operate"), ("research",)))


@pytest.fixture
def watchdog() -> Watchdog:
    return Watchdog()


@pytest.fixture
def feed() -> Feed:
    made = Feed(Access(Address("127.0.0.1", 1), Credential("token")), "test")
    made.jobs[JOB] = heard(looked([sample(rank) for rank in range(4)]), order=range(4))
    made.hear(Pulse(1000.0))
    return made


def client(feed: Feed, watchdog: Watchdog) -> httpx.AsyncClient:
    app = make_application(feed, cast(WatchdogHttp, watchdog))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://console")


async def test_a_form_of_another_sites_page_commands_nothing(feed: Feed, watchdog: Watchdog) -> None:
    """A proxy that knows the browser by its cookie puts the person's token beside whatever a form sends."""
    proxied = {"X-Forwarded-Access-Token": "olga"}
    async with client(feed, watchdog) as http:
        for kind in (FORM, "application/x-www-form-urlencoded", ""):
            answer = await http.post(PATH, content=b'{"a":1}', headers={**proxied, "Content-Type": kind})
            assert (answer.status_code, "Content-Type" in answer.json()["error"]) == (415, True)
        assert watchdog.asked == []
        said = {**proxied, "Content-Type": "application/json; charset=utf-8"}
        assert (await http.post(PATH, content=b'{"a":1}', headers=said)).status_code == 200
    assert watchdog.asked == [("POST", f"/v1/jobs/{JOB}/interventions", "olga")]


async def test_no_name_of_a_job_leads_to_another_path_of_the_watchdogs(feed: Feed, watchdog: Watchdog) -> None:
    async with client(feed, watchdog) as http:
        for name in ("%2e%2e/metrics", "a/%2e%2e", "%2e/x"):
            answer = await http.get(f"/api/v1/jobs/{name}/forecast", headers={"Authorization": "Bearer olga"})
            assert answer.status_code == 404
    assert watchdog.asked == []


async def test_a_stream_ends_quietly_when_nobody_can_say_any_more_who_reads_it(
    feed: Feed, watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.console.serving.stream.CHECK_EVERY_S", 0.0)
    console = Console(feed, cast(WatchdogHttp, watchdog))

    async def away() -> None:
        raise Unavailable("the watchdog does not answer")

    said = [each async for each in console.stream(feed.jobs[JOB], away)]
    assert said == [b": welcome\n\n"]
    assert console.readers == 0


async def test_a_figure_that_is_none_is_refused_by_its_name(feed: Feed, watchdog: Watchdog) -> None:
    async with client(feed, watchdog) as http:
        answer = await http.get(f"/api/v1/jobs/{JOB}/series?points=many", headers={"Authorization": "Bearer olga"})
    assert answer.status_code == 400
    assert "points" in answer.json()["error"]
    assert "many" in answer.json()["error"]
