"""The clouds whose metadata services give notice before they take a machine away.

Each asks only the link-local address that its cloud documents, and only where the machine says that it is there.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol

import aiohttp

from holdfast.agent.sensors.cloud_notice import (
    GCP_MAINTENANCE_S,
    GCP_PREEMPTION_S,
    Meaning,
    Notice,
    NotNotice,
    aws_rebalance_notice,
    aws_spot_notice,
    azure_notices,
    when,
)

METADATA_URL: Final = "http://169.254.169.254"
DMI: Final = "/sys/class/dmi/id"
TIMEOUT_S: Final = 3.0
BODY_MAX_BYTES: Final = 2**18
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


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

        Raises NotNotice, and aiohttp's and the system's errors.
        """
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S + wait_s)
        url = self._base_url + path
        async with self._session.request(
            method, url, headers=headers, allow_redirects=False, timeout=timeout
        ) as response:
            body = bytearray()
            async for chunk in response.content.iter_chunked(2**14):
                body += chunk
                if len(body) > BODY_MAX_BYTES:
                    raise NotNotice(f"its answer is longer than {BODY_MAX_BYTES} bytes")
            return Answer(
                response.status,
                body.decode("utf-8", "replace").strip(),
                response.headers.get("ETag", ""),
                when(response.headers.get("Date", "")),
            )


class Cloud(Protocol):
    """One cloud's service. `interval_s` is how long to wait between two questions.

    A departure is told before anything else is asked, which might fail.
    """

    interval_s: float

    async def notices(self, metadata: Metadata) -> tuple[Notice, ...]:
        """All notices that stand. Raises NotNotice, and aiohttp's and the system's errors."""
        ...


class Aws:
    """Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html and
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html (tokens)
    """

    interval_s = 5.0  # as often as it is asked to be looked at
    _TOKEN_TTL_S: Final = 21600

    def __init__(self) -> None:
        self._token = ""

    async def notices(self, metadata: Metadata) -> tuple[Notice, ...]:
        """As in `Cloud`."""
        spot = await self._ask(metadata, "/latest/meta-data/spot/instance-action")
        if spot is not None:
            return (aws_spot_notice(spot.text, spot.answered),)
        rebalance = await self._ask(metadata, "/latest/meta-data/events/recommendations/rebalance")
        return () if rebalance is None else (aws_rebalance_notice(rebalance.text),)

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
        """As in `Cloud`."""
        instance = "/computeMetadata/v1/instance"
        waiting = (
            f"?wait_for_change=true&timeout_sec={self._WAIT_S:.0f}&last_etag={self._etag}" if self._etag else ""
        )
        wait_s = self._WAIT_S if waiting else 0.0
        preempted = _good(await metadata.ask(f"{instance}/preempted{waiting}", self._HEADERS, wait_s=wait_s))
        self._etag = preempted.etag
        if preempted.text not in ("TRUE", "FALSE"):
            raise NotNotice(f"neither TRUE nor FALSE: {preempted.text[:40]!r}")
        if preempted.text == "TRUE":
            return (Notice("preempted", Meaning.DEPARTURE, GCP_PREEMPTION_S, "preempted"),)
        maintenance = _good(await metadata.ask(f"{instance}/maintenance-event", self._HEADERS)).text
        if maintenance not in self._MAINTENANCE:
            raise NotNotice(f"a maintenance event that it does not document: {maintenance[:40]!r}")
        if maintenance != self._maintenance:
            self._maintenance = maintenance
            self._maintenances += 1
        if maintenance != "TERMINATE_ON_HOST_MAINTENANCE":
            return ()
        key = f"maintenance {self._maintenances}"  # the service gives it no name
        return (Notice(key, Meaning.DEPARTURE, GCP_MAINTENANCE_S, "terminated for host maintenance"),)


class Azure:
    """Source: https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events and
    https://learn.microsoft.com/azure/virtual-machines/instance-metadata-service
    """

    interval_s = 2.0
    _HEADERS: Final = MappingProxyType({"Metadata": "true"})

    def __init__(self) -> None:
        self._machine = ""

    async def notices(self, metadata: Metadata) -> tuple[Notice, ...]:
        """As in `Cloud`."""
        if not self._machine:
            path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
            self._machine = _good(await metadata.ask(path, self._HEADERS)).text
        path = "/metadata/scheduledevents?api-version=2020-07-01"
        events = _good(await metadata.ask(path, self._HEADERS))
        return tuple(azure_notices(events.text, self._machine, events.answered))


CLOUDS: Final[Mapping[CloudName, type[Aws] | type[Gcp] | type[Azure]]] = MappingProxyType(
    {CloudName.AWS: Aws, CloudName.GCP: Gcp, CloudName.AZURE: Azure}
)


def cloud_here(dmi: str = DMI) -> CloudName | None:
    """Which cloud the machine's firmware says it is in; None: none of these, or it does not say.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html,
    https://cloud.google.com/compute/docs/instances/detect-compute-engine and
    https://cloudinit.readthedocs.io/en/latest/reference/datasources/azure.html (the asset tag)
    """
    if _firmware(dmi, "sys_vendor") == "Amazon EC2" or "amazon" in _firmware(dmi, "bios_version").lower():
        return CloudName.AWS
    if _firmware(dmi, "product_name") == "Google Compute Engine":
        return CloudName.GCP
    if _firmware(dmi, "chassis_asset_tag") == "7783-7084-3265-9085-8269-3286-77":
        return CloudName.AZURE
    return None


def _firmware(dmi: str, name: str) -> str:
    try:
        with open(os.path.join(dmi, name), encoding="ascii", errors="replace") as file:
            return file.read(256).strip()
    except OSError:
        return ""


def _good(answer: Answer) -> Answer:
    if answer.status != 200:
        raise NotNotice(f"it answers {answer.status}")
    return answer
