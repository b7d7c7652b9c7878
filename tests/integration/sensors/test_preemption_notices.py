"""Notices over real HTTP, from fakes that answer as the three clouds document."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from aiohttp import web
from asking import Asking
from http_fake import serving

from holdfast.agent.sensors import preemption
from holdfast.agent.sensors.preemption import CloudName, PreemptionNotices
from holdfast.api.telemetry import PreemptionNoticed


def told_by(asking: Asking) -> list[PreemptionNoticed]:
    return [event for event in asking.events if isinstance(event, PreemptionNoticed)]


class Aws:
    """Instance metadata, version 2."""

    def __init__(self) -> None:
        self.tokens = 0
        self.valid = ""
        self.answers = 0
        self.spot: str | None = None
        self.rebalance: str | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/latest/api/token":
            assert request.method == "PUT"
            assert request.headers["X-aws-ec2-metadata-token-ttl-seconds"] == "21600"
            self.tokens += 1
            self.valid = f"token-{self.tokens}"
            return web.Response(text=self.valid)
        if request.headers.get("X-aws-ec2-metadata-token") != self.valid:
            return web.Response(status=401)
        self.answers += 1
        text = self.spot if request.path == "/latest/meta-data/spot/instance-action" else self.rebalance
        return web.Response(status=404) if text is None else web.Response(text=text)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks again at once, so that the tests are quick."""
    for cloud in (preemption.Aws, preemption.Gcp, preemption.Azure):
        monkeypatch.setattr(cloud, "interval_s", 0.02)
    monkeypatch.setattr(preemption, "_RETRY_S", 0.02)
    monkeypatch.setattr(preemption, "TIMEOUT_S", 1.0)


async def settled(asking: Asking, count: Callable[[], int], more: int = 5) -> None:
    """Goes on until the fake has answered some more times."""
    wanted = count() + more
    await asking.until(lambda _: count() >= wanted)


async def test_a_spot_notice_is_told_once_and_a_recommendation_never() -> None:
    aws = Aws()
    async with serving(aws.answer) as url:
        sensor = PreemptionNotices(CloudName.AWS, base_url=url)
        asking = Asking(sensor)
        await settled(asking, lambda: aws.answers)
        aws.rebalance = json.dumps({"noticeTime": "2026-11-21T08:22:00Z"})
        await settled(asking, lambda: aws.answers)
        assert asking.events == []
        due = datetime.now(UTC) + timedelta(seconds=120)
        aws.spot = json.dumps({"action": "terminate", "time": due.strftime("%Y-%m-%dT%H:%M:%SZ")})
        await asking.until(lambda reading: reading.events)
        await settled(asking, lambda: aws.answers)
        (event,) = told_by(asking)
        assert event.source == "aws"
        assert event.text.startswith("terminate at")
        assert 60 < event.within_s <= 121
        sensor.close()


async def test_a_token_that_has_run_out_is_renewed() -> None:
    aws = Aws()
    async with serving(aws.answer) as url:
        sensor = PreemptionNotices(CloudName.AWS, base_url=url)
        asking = Asking(sensor)
        await settled(asking, lambda: aws.answers)
        aws.valid = "another"
        await settled(asking, lambda: aws.answers)
        assert aws.tokens == 2
        assert not asking.once().unreadable
        sensor.close()


class Gcp:
    """Holds an answer back until the value changes, as asked."""

    def __init__(self) -> None:
        self.preempted = "FALSE"
        self.maintenance = "NONE"
        self.changed = asyncio.Event()
        self.answers = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Metadata-Flavor"] == "Google"
        if request.path.endswith("/maintenance-event"):
            return web.Response(text=self.maintenance)
        assert request.path == "/computeMetadata/v1/instance/preempted"
        if request.query.get("wait_for_change") == "true" and request.query["last_etag"] == self.preempted:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), 0.1)
        self.answers += 1
        return web.Response(text=self.preempted, headers={"ETag": self.preempted})


async def test_a_preempted_instance_is_told_once() -> None:
    gcp = Gcp()
    async with serving(gcp.answer) as url:
        sensor = PreemptionNotices(CloudName.GCP, base_url=url)
        asking = Asking(sensor)
        await settled(asking, lambda: gcp.answers)
        gcp.preempted = "TRUE"
        gcp.changed.set()
        await asking.until(lambda reading: reading.events)
        await settled(asking, lambda: gcp.answers, more=3)
        (event,) = told_by(asking)
        assert (event.source, event.within_s, event.text) == ("gcp", 30.0, "preempted")
        sensor.close()


async def test_each_maintenance_that_ends_the_instance_is_told_and_a_migration_is_not() -> None:
    gcp = Gcp()
    async with serving(gcp.answer) as url:
        sensor = PreemptionNotices(CloudName.GCP, base_url=url)
        asking = Asking(sensor)
        gcp.maintenance = "MIGRATE_ON_HOST_MAINTENANCE"
        await settled(asking, lambda: gcp.answers, more=3)
        assert asking.events == []
        for told in (1, 2):
            gcp.maintenance = "TERMINATE_ON_HOST_MAINTENANCE"
            await asking.until(lambda reading, told=told: len(asking.events) == told)  # type: ignore[misc]
            gcp.maintenance = "NONE"
            await settled(asking, lambda: gcp.answers, more=3)
        assert [event.within_s for event in told_by(asking)] == [60.0, 60.0]
        sensor.close()


async def test_a_scheduled_event_of_this_machine_is_told_once_through_its_states() -> None:
    events: list[dict[str, object]] = []
    answers = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal answers
        assert request.headers["Metadata"] == "true"
        if request.path == "/metadata/instance/compute/name":
            return web.Response(text="vmss_1")
        assert request.query["api-version"] == "2020-07-01"
        answers += 1
        return web.json_response({"DocumentIncarnation": answers, "Events": events})

    async with serving(answer) as url:
        sensor = PreemptionNotices(CloudName.AZURE, base_url=url)
        asking = Asking(sensor)
        other = {"EventId": "x", "EventType": "Terminate", "EventStatus": "Scheduled", "Resources": ["vmss_0"]}
        events.append(other)
        await settled(asking, lambda: answers)
        assert asking.events == []
        due = format_datetime(datetime.now(UTC) + timedelta(minutes=10), usegmt=True)
        events.append({**other, "EventId": "y", "Resources": ["vmss_1"], "NotBefore": due})
        await asking.until(lambda reading: reading.events)
        events[1] = {**events[1], "EventStatus": "Started", "NotBefore": ""}
        await settled(asking, lambda: answers)
        events.clear()
        await settled(asking, lambda: answers)
        (event,) = told_by(asking)
        assert event.text == "Terminate y"
        assert 500 < event.within_s <= 600
        sensor.close()


MANNERS = ("hangs", "refuses", "talks for ever", "talks nonsense", "is not there", "has a clock of its own")


@pytest.mark.parametrize("cloud", CloudName)
@pytest.mark.parametrize("manner", MANNERS)
async def test_a_service_that_does_not_answer_well_is_unreadable(cloud: CloudName, manner: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if manner == "has a clock of its own":
            return web.Response(text="?", headers={"Date": "Sat, 21 Nov 99999999999999999999 08:00:00 GMT"})
        if manner == "hangs":
            await asyncio.Event().wait()
        if manner == "refuses":
            return web.Response(status=403)
        return web.Response(text="what?" if manner == "talks nonsense" else "\x00{" * 200_000)

    async with serving(answer) as url:
        address = "http://127.0.0.1:1" if manner == "is not there" else url
        sensor = PreemptionNotices(cloud, base_url=address, patience_s=0.1)
        asking = Asking(sensor)
        reading = await asking.until(
            lambda reading: reading.unreadable and "yet" not in reading.unreadable[0].reason
        )
        assert reading.unreadable[0].source == sensor.name == "preemption"
        assert reading.unreadable[0].reason.removeprefix(f"{cloud}: ") not in ("", reading.unreadable[0].reason)
        assert asking.events == []
        sensor.close()
