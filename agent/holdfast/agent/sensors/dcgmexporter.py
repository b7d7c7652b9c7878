"""GPUs as an existing dcgm-exporter sees them, over HTTP."""

import asyncio
import time
from dataclasses import replace
from typing import Final

import aiohttp
import msgspec

from holdfast.agent.conditions.gpus import GpuJudge
from holdfast.agent.reading import GpuDetail, Reading, sample_of
from holdfast.agent.sensors.background import Background, body_of
from holdfast.agent.sensors.dcgm_text import GPUS_MAX, NotDcgm, Scrape, XidGauge, scrape_of
from holdfast.api.telemetry import GpuHealth, GpuSample, NodeEvent, Unreadable, XidRaised

_NAME: Final = "dcgm-exporter"
BODY_MAX_BYTES: Final = 4 * 2**20
TIMEOUT_S: Final = 3.0
EVENTS_MAX: Final = 256
# Longer than the exporter keeps a value: two judged looks are two readings of the GPU. Shorter than the minute
# after which the judgement of rates begins anew.
JUDGE_EVERY_S: Final = 45.0
JUDGED_GAP_S_MAX: Final = 60.0


class DcgmExporter:
    """The sensor. `url` is the exporter's metrics page, which it refreshes every 30 s by default.

    Samples are shown for `patience_s` after the last good answer, then the source is unreadable and the GPUs are
    Unknown. A GPU that the exporter named and does not name any more is Unknown as well: exporters leave GPUs out
    for reasons of their own, so that alone no GPU counts as lost.
    """

    name = _NAME

    def __init__(self, url: str, *, interval_s: float = 10.0, patience_s: float = 30.0) -> None:
        self._url = url
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._background = Background(self._watch, name=_NAME, failed=self._fail)
        self._gauge = XidGauge()
        self._judge = GpuJudge(gap_s_max=JUDGED_GAP_S_MAX)
        self._judged_at = float("-inf")
        self._events: list[tuple[XidRaised, float]] = []
        self._scrape = Scrape()
        self._answered_at: float | None = None
        self._asked_at: float | None = None
        self._failure = "it has not answered yet"

    def read(self, now: float) -> Reading:
        """As in `Sensor`; the first call begins to ask, and must be on the event loop's thread."""
        if self._asked_at is None:
            self._asked_at = now
        self._background.start()
        events, self._events = self._events, []
        aged: tuple[NodeEvent, ...] = tuple(
            msgspec.structs.replace(event, age_s=max(0.0, now - at)) for event, at in events
        )
        since = self._asked_at if self._answered_at is None else self._answered_at
        samples = tuple(sample_of(detail) for detail in self._scrape.details)
        conditions = self._judge.book.report(now)
        if now - since > self._patience_s:
            unknown = tuple(GpuSample(each.uuid, each.index, GpuHealth.UNKNOWN) for each in samples)
            unreadable = (Unreadable(_NAME, self._failure),)
            return Reading(gpus=unknown, events=aged, conditions=conditions, unreadable=unreadable)
        return Reading(
            gpus=samples,
            details=self._scrape.details,
            events=aged,
            conditions=conditions,
            all_clear=self._judge.book.all_clear(),
        )

    def close(self) -> None:
        self._background.close()

    async def _watch(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                try:
                    async with session.get(self._url, allow_redirects=False) as response:
                        if response.status != 200:
                            raise NotDcgm(f"it answers {response.status}")
                        text = await body_of(response, BODY_MAX_BYTES)
                    scrape = await asyncio.to_thread(scrape_of, text)
                except TimeoutError:
                    self._fail(f"no answer within {TIMEOUT_S:.0f} s")
                except (aiohttp.ClientError, OSError, ValueError) as error:
                    self._fail(str(error) or type(error).__name__)
                else:
                    self._take(scrape, time.monotonic())
                await asyncio.sleep(self._interval_s)

    def _take(self, scrape: Scrape, now: float) -> None:
        news = [(event, now) for event in self._gauge.observe(scrape.xids, now)]
        self._events = [*self._events, *news][-EVENTS_MAX:]
        self._answered_at = now
        # Of the GPUs that it does not name any more the names stay, with nothing known of them.
        named = {detail.uuid for detail in scrape.details}
        gone = [each for each in self._scrape.details if each.uuid not in named]
        details = (*scrape.details, *(GpuDetail(uuid=each.uuid, index=each.index) for each in gone))
        self._scrape = replace(scrape, details=details[:GPUS_MAX])
        if now - self._judged_at >= JUDGE_EVERY_S:
            self._judged_at = now
            for detail in scrape.details:
                self._judge.observe(detail, now)

    def _fail(self, reason: str) -> None:
        self._failure = reason
        self._gauge.gap()
