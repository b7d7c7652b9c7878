"""What a reader is sent: only what is new to him, of each kind the newest, however late he comes back."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from test_columns import JOB, heard, incident, looked, sample, status

from holdfast.api.feed import IncidentTold, JobGone, JobTold, Pulse, StepsTold
from holdfast.console.feed import Feed
from holdfast.console.heard import INCIDENTS_TOLD
from holdfast.console.serving import stream
from holdfast.console.serving.authority import Refused
from holdfast.console.serving.document import Documents
from holdfast.console.serving.stream import Reader
from holdfast.wire.access import Access, Address, Credential

Said = list[tuple[str, Any]]


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch) -> Feed:
    monkeypatch.setattr(stream, "BREATH_S", 0.0)
    monkeypatch.setattr(stream, "JOB_EVERY_S", 0.0)
    monkeypatch.setattr(stream, "RANKS_EVERY_S", 0.0)
    made = Feed(Access(Address("127.0.0.1", 1), Credential("token")), "test")
    made.jobs[JOB] = heard(looked([sample(rank) for rank in range(4)]), order=range(4))
    return made


def reading(feed: Feed, check: Any = None) -> AsyncIterator[bytes]:
    job = feed.jobs[JOB]
    documents = Documents(job)

    async def may() -> None:
        return None

    return Reader(feed, job, lambda _: documents, check or may).events()


def said(content: bytes) -> Said:
    events = []
    for part in content.decode().split("\n\n"):
        if part.startswith("event: "):
            name, data = part.removeprefix("event: ").split("\ndata: ")
            events.append((name, json.loads(data)))
    return events


def step(feed: Feed, number: int) -> None:
    columns = looked([sample(rank, step=number) for rank in range(4)])
    feed.hear(StepsTold(JOB, 1, 1000.0 + number, columns.columns))


async def test_who_comes_back_late_is_sent_the_newest_of_each_kind(feed: Feed) -> None:
    reader = reading(feed)
    assert await anext(reader) == b": welcome\n\n"
    ((name, first),) = said(await anext(reader))
    assert (name, first["incidents"], len(first["nodes"])) == ("job", [], 2)
    for number in range(8, 500):  # all of it while he reads nothing
        step(feed, number)
        feed.hear(JobTold(JOB, status(step=number, now=1000.0 + number)))
    told = dict(said(await anext(reader)))
    assert set(told) == {"job", "series", "ranks"}
    assert (told["job"]["line"]["step"], told["series"]["step"]) == (499, 499)
    assert (told["job"]["nodes"], told["job"]["incidents"]) == (None, None), "they are as he was told"
    assert told["ranks"] == feed.jobs[JOB].versions["ranks"]


async def test_each_incident_is_told_and_of_very_many_the_newest(feed: Feed) -> None:
    reader = reading(feed)
    await anext(reader)
    await anext(reader)
    for number in range(3 * INCIDENTS_TOLD):
        feed.hear(IncidentTold(JOB, incident(id=f"inc-{number}")))
    events = said(await anext(reader))
    ids = [each["id"] for name, each in events if name == "incident"]
    assert 2 < len(ids) <= INCIDENTS_TOLD + 1
    assert ids[-1] == f"inc-{3 * INCIDENTS_TOLD - 1}"
    (document,) = [each for name, each in events if name == "job"]
    assert len(document["incidents"]) == 100


async def test_a_stream_ends_with_the_job(feed: Feed) -> None:
    reader = reading(feed)
    await anext(reader)
    await anext(reader)
    feed.hear(JobGone(JOB))
    assert said(await anext(reader)) == [("gone", {"job": JOB})]
    with pytest.raises(StopAsyncIteration):
        await anext(reader)


async def test_a_stream_ends_with_the_right_to_read(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CHECK_EVERY_S", 0.0)

    async def may_not() -> None:
        raise Refused(403, "no more")

    reader = reading(feed, may_not)
    await anext(reader)
    with pytest.raises(Refused):
        await anext(reader)


async def test_jobs_that_went_while_the_watchdog_was_away_are_forgotten_with_the_first_pulse(feed: Feed) -> None:
    job = feed.jobs[JOB]
    speech = feed.speech()
    await anext(speech)
    feed.hear(JobTold("research/other", status(job="research/other")))
    assert JOB in feed.jobs
    feed.hear(Pulse(1005.0))
    assert list(feed.jobs) == ["research/other"]
    assert job.is_gone
    feed.hear(Pulse(1006.0))
    assert (list(feed.jobs), feed.heard_at) == (["research/other"], 1006.0)
    await speech.aclose()


async def test_how_stale_it_is_is_known(feed: Feed) -> None:
    now = 10.0
    watched = Feed(Access(Address("127.0.0.1", 1), Credential("token")), "test", clock=lambda: now)
    assert watched.stale_s is None
    told = watched.told
    watched.hear(Pulse(1.0))
    now = 12.5
    assert watched.stale_s == 2.5
    assert told.is_set()
    await asyncio.sleep(0)
