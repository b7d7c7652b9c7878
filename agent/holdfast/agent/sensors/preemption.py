"""Notices that the machine is to be taken away, from the metadata service of the cloud it is in.

Each cloud is asked only at the link-local address that it documents, and only where the machine says that it is
there."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import aiohttp

from holdfast.agent.reading import Reading
from holdfast.agent.sensors import cloud_notice
from holdfast.agent.sensors.background import Background, body_of, kernel_value
from holdfast.agent.sensors.cloud_notice import Meaning, Notice, NotNotice
from holdfast.api.telemetry import PreemptionNoticed, Unreadable

METADATA_URL: Final = "http://169.254.169.254"
DMI: Final = "/sys/class/dmi/id"
TIMEOUT_S: Final = 3.0
BODY_MAX_BYTES: Final = 2**18
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
_LOG = logging.getLogger(__name__)
_NAME: Final = "preemption"
_RETRY_S: Final = 5.0
_REMEMBERED_MAX: Final = 256


class CloudName(StrEnum):
    """Who owns the machine."""

    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer; `answered` by the service's clock, None when it does not say."""

    status: int
    text: str
    etag: str
    answered: datetime | None


class Metadata:
    """The metadata service at `base_url`. Bounded in time and size, and led nowhere else."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session = session
        self._base_url = base_url

    async def ask(
        self, path: str, headers: Mapping[str, str] = _NO_HEADERS, *, method: str = "GET", wait_s: float = 0.0
    ) -> Answer:
        """One request. `wait_s` is for how long the service was asked to hold the answer back.

        Raises ValueError for an answer that is too long, and aiohttp's and the system's errors.
        """
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S + wait_s)
        url = self._base_url + path
        async with self._session.request(
            method, url, headers=headers, allow_redirects=False, timeout=timeout
        ) as response:
            text = (await body_of(response, BODY_MAX_BYTES)).strip()
            answered = cloud_notice.when(response.headers.get("Date", ""))
            return Answer(response.status, text, response.headers.get("ETag", ""), answered)


class Aws:
    """Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html and
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html (tokens)
    """

    interval_s = 5.0  # as often as it is asked to be looked at
    _TOKEN_TTL_S: Final = 21600

    def __init__(self) -> None:
        self._token = ""

    async def notices(self, metadata: Metadata) -> tuple[Notice, ...]:
        spot = await self._ask(metadata, "/latest/meta-data/spot/instance-action")
        if spot is not None:
            return (cloud_notice.aws_spot_notice(spot.text, spot.answered),)
        rebalance = await self._ask(metadata, "/latest/meta-data/events/recommendations/rebalance")
        return () if rebalance is None else (cloud_notice.aws_rebalance_notice(rebalance.text),)

    async def _ask(self, metadata: Metadata, path: str) -> Answer | None:
        """The answer, or None where there is nothing (404). A token that has run out is renewed once."""
        for _ in range(2):
            if not self._token:
                ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(self._TOKEN_TTL_S)}
                granted = await metadata.ask("/latest/api/token", ttl, method="PUT")
                self._token = _good(granted).text
            answer = await metadata.ask(path, {"X-aws-ec2-metadata-token": self._token})
            if answer.status == 404:
                return None
            if answer.status != 401:
                return _good(answer)
            self._token = ""
        raise NotNotice("it refuses the token that it just gave")


class Gcp:
    """Source: https://cloud.google.com/compute/docs/instances/preemptible and
    https://cloud.google.com/compute/docs/metadata/querying-metadata (wait_for_change)
    """

    interval_s = 1.0  # it holds the answer back until something changes
    _WAIT_S: Final = 10.0
    _HEADERS: Final = MappingProxyType({"Metadata-Flavor": "Google"})
    _MAINTENANCE: Final = ("NONE", "MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE")

    def __init__(self) -> None:
        self._etag = ""
        self._maintenance = "NONE"
        self._maintenances = 0

    async def notices(self, metadata: Metadata) -> tuple[Notice, ...]:
        instance = "/computeMetadata/v1/instance"
        path, wait_s = f"{instance}/preempted", 0.0
        if self._etag:
            wait_s = self._WAIT_S
            path += f"?wait_for_change=true&timeout_sec={wait_s:.0f}&last_etag={self._etag}"
        preempted = _good(await metadata.ask(path, self._HEADERS, wait_s=wait_s))
        self._etag = preempted.etag
        if preempted.text not in ("TRUE", "FALSE"):
            raise NotNotice(f"neither TRUE nor FALSE: {preempted.text[:40]!r}")
        if preempted.text == "TRUE":
            return (Notice("preempted", Meaning.DEPARTURE, cloud_notice.GCP_PREEMPTION_S, "preempted"),)
        maintenance = _good(await metadata.ask(f"{instance}/maintenance-event", self._HEADERS)).text
        if maintenance not in self._MAINTENANCE:
            raise NotNotice(f"a maintenance event that it does not document: {maintenance[:40]!r}")
        if maintenance != self._maintenance:
            self._maintenance = maintenance
            self._maintenances += 1
        if maintenance != "TERMINATE_ON_HOST_MAINTENANCE":
            return ()
        key = f"maintenance {self._maintenances}"  # the service gives it no name
        return (Notice(key, Meaning.DEPARTURE, cloud_notice.GCP_MAINTENANCE_S, "terminated for host maintenance"),)


class Azure:
    """Source: https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events and
    https://learn.microsoft.com/azure/virtual-machines/instance-metadata-service
    """

    interval_s = 2.0
    _HEADERS: Final = MappingProxyType({"Metadata": "true"})

    def __init__(self) -> None:
        self._machine = ""

    async def notices(self, metadata: Metadata) -> tuple[Notice, ...]:
        if not self._machine:
            path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
            self._machine = _good(await metadata.ask(path, self._HEADERS)).text
        path = "/metadata/scheduledevents?api-version=2020-07-01"
        events = _good(await metadata.ask(path, self._HEADERS))
        return tuple(cloud_notice.azure_notices(events.text, self._machine, events.answered))


# Each has `notices`, which gives all that stand and raises ValueError and aiohttp's and the system's errors, and
# `interval_s`, for how long to wait between two questions. A departure is told before anything else is asked, as
# that might fail.
CLOUDS: Final[Mapping[CloudName, type[Aws] | type[Gcp] | type[Azure]]] = MappingProxyType(
    {CloudName.AWS: Aws, CloudName.GCP: Gcp, CloudName.AZURE: Azure}
)


def cloud_here(dmi: str = DMI) -> CloudName | None:
    """Which cloud the machine's firmware says it is in; None: none of these, or it does not say.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html,
    https://cloud.google.com/compute/docs/instances/detect-compute-engine and
    https://cloudinit.readthedocs.io/en/latest/reference/datasources/azure.html (the asset tag)
    """
    if kernel_value(dmi, "sys_vendor") == "Amazon EC2" or "amazon" in kernel_value(dmi, "bios_version").lower():
        return CloudName.AWS
    if kernel_value(dmi, "product_name") == "Google Compute Engine":
        return CloudName.GCP
    if kernel_value(dmi, "chassis_asset_tag") == "7783-7084-3265-9085-8269-3286-77":
        return CloudName.AZURE
    return None


def _good(answer: Answer) -> Answer:
    if answer.status != 200:
        raise NotNotice(f"it answers {answer.status}")
    return answer


class PreemptionNotices:
    """The sensor. `cloud` is whose machine it is.

    Every notice is one event. A notice that is withdrawn stays told: by then its node is being left already, and a
    node that stays after all is taken back as any other that is well.
    """

    name = _NAME

    def __init__(self, cloud: CloudName, *, base_url: str = METADATA_URL, patience_s: float = 60.0) -> None:
        self._whose = cloud
        self._cloud = CLOUDS[cloud]()
        self._base_url = base_url
        self._patience_s = patience_s
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
        self._background.close()

    async def _watch(self) -> None:
        async with aiohttp.ClientSession() as session:
            metadata = Metadata(session, self._base_url)
            while True:
                try:
                    notices = await self._cloud.notices(metadata)
                except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                    self._fail("no answer in time" if isinstance(error, TimeoutError) else str(error))
                    await asyncio.sleep(_RETRY_S)
                    continue
                now = self._answered_at = time.monotonic()
                for notice in notices:
                    if notice.key in self._seen:
                        continue
                    self._seen[notice.key] = None
                    if len(self._seen) > _REMEMBERED_MAX:
                        self._seen.popitem(last=False)
                    _LOG.warning("notice from the cloud: meaning=%s text=%s", notice.meaning.value, notice.text)
                    if notice.meaning is Meaning.DEPARTURE:
                        self._news.append((notice, now))
                await asyncio.sleep(self._cloud.interval_s)

    def _fail(self, reason: str) -> None:
        self._failure = reason
