"""Notices that the machine is to be taken away, from the metadata service of the cloud it is in."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import aiohttp

from holdfast.agent.sensors.background import Background
from holdfast.agent.sensors.cloud_notice import Meaning, Notice
from holdfast.agent.sensors.clouds import CLOUDS, METADATA_URL, CloudName, Metadata
from holdfast.agent.sensors.sensor import Reading
from holdfast.api.telemetry import PreemptionNoticed, Unreadable

_LOG = logging.getLogger(__name__)
_NAME: Final = "preemption"
_RETRY_S: Final = 5.0
_REMEMBERED_MAX: Final = 256


class PreemptionNotices:
    """The sensor. `cloud` is whose machine it is.

    Every notice is one event. A notice that is withdrawn stays told: by then its node is being left already, and a
    node that stays after all is taken back as any other that is well.
    """

    name = _NAME

    def __init__(
        self,
        cloud: CloudName,
        *,
        base_url: str = METADATA_URL,
        patience_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._whose = cloud
        self._cloud = CLOUDS[cloud]()
        self._base_url = base_url
        self._patience_s = patience_s
        self._clock = clock
        self._background = Background(self._watch, name=_NAME, failed=self._fail)
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._news: list[tuple[Notice, float]] = []
        self._asked_at: float | None = None
        self._answered_at: float | None = None
        self._failure = "it has not answered yet"

    def read(self, now: float) -> Reading:
        """As in `Sensor`; the first call begins to ask, and must be on the event loop's thread."""
        if self._asked_at is None:
            self._asked_at = now
        self._background.start()
        news, self._news = self._news, []
        since = self._asked_at if self._answered_at is None else self._answered_at
        away = now - since > self._patience_s
        return Reading(
            events=tuple(
                PreemptionNoticed(str(self._whose), notice.within_s, max(0.0, now - at), notice.text[:200])
                for notice, at in news
            ),
            unreadable=(Unreadable(_NAME, f"{self._whose}: {self._failure}"),) if away else (),
        )

    def close(self) -> None:
        """Stop asking."""
        self._background.close()

    async def _watch(self) -> None:
        async with aiohttp.ClientSession() as session:
            metadata = Metadata(session, self._base_url)
            while True:
                try:
                    self._take(await self._cloud.notices(metadata))
                except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                    self._fail("no answer in time" if isinstance(error, TimeoutError) else str(error))
                    await asyncio.sleep(_RETRY_S)
                else:
                    await asyncio.sleep(self._cloud.interval_s)

    def _fail(self, reason: str) -> None:
        self._failure = reason

    def _take(self, notices: tuple[Notice, ...]) -> None:
        now = self._answered_at = self._clock()
        for notice in notices:
            if notice.key in self._seen:
                continue
            self._seen[notice.key] = None
            if len(self._seen) > _REMEMBERED_MAX:
                self._seen.popitem(last=False)
            _LOG.warning("notice from the cloud: meaning=%s text=%s", notice.meaning.value, notice.text)
            if notice.meaning is Meaning.DEPARTURE:
                self._news.append((notice, now))
