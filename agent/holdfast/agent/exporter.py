"""The node's Prometheus metrics. What is Unknown is absent, never zero."""

import hmac
from collections.abc import Callable, Iterable, Iterator
from enum import Enum

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from holdfast.agent.metrics.dcgm import write_dcgm
from holdfast.agent.metrics.gpus import write_gpus
from holdfast.agent.metrics.itself import Line, write_itself
from holdfast.agent.metrics.ranks import write_ranks
from holdfast.agent.metrics.sheet import Sheet
from holdfast.agent.metrics.surroundings import write_surroundings
from holdfast.agent.metrics.table import AGENT_METRICS, OWN_METRICS
from holdfast.agent.picture import Picture
from holdfast.api.errors import Unavailable


class DcgmNames(Enum):
    """Who exports GPU telemetry under DCGM's names. Told twice, every sum over GPUs would count them twice."""

    HERE = "here"
    ELSEWHERE = "elsewhere"


class NodeCollector(Collector):
    """Turns the picture into metrics when it is scraped.

    `job` is the agent's only one, empty for an agent of many. `clock` is CLOCK_MONOTONIC in seconds, `lines` gives
    the jobs' lines to the watchdog.
    """

    def __init__(
        self,
        picture: Picture,
        *,
        node: str,
        build: tuple[str, str],
        clock: Callable[[], float],
        lines: Callable[[], Iterable[Line]],
        dcgm: DcgmNames = DcgmNames.HERE,
    ) -> None:
        """`build` is the agent's version, and the job."""
        self._picture = picture
        self._node = node
        self._build = build
        self._clock = clock
        self._lines = lines
        self._dcgm = dcgm

    def collect(self) -> Iterator[Metric]:
        """Every family, also those without a sample now."""
        now, node, picture = self._clock(), self._node, self._picture
        here = self._dcgm is DcgmNames.HERE
        sheet = Sheet(AGENT_METRICS if here else OWN_METRICS)
        sheet.put("holdfast_agent_build_info", (*self._build, node), 1)
        write_itself(sheet, picture, self._lines(), node=node)
        write_ranks(sheet, picture, node=node, now=now)
        write_gpus(sheet, picture, node=node, now=now)
        write_surroundings(sheet, picture, node=node, now=now)
        if here:
            write_dcgm(sheet, picture, node=node)
        yield from sheet


def metrics_application(collector: Collector, *, token: Callable[[], str]) -> web.Application:
    """GET /metrics for whoever shows the token; 401 with one clear sentence for everybody else.

    The text is OpenMetrics for who accepts that, else the older format.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)

    async def metrics(request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "")
        try:
            wanted = f"Bearer {token()}"
        except Unavailable:
            return web.json_response({"error": "The agent cannot read its token now."}, status=503)
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode()):
            refusal = {"error": "Send the agent's token as `Authorization: Bearer TOKEN`."}
            return web.json_response(refusal, status=401, headers={"WWW-Authenticate": "Bearer"})
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    application = web.Application(client_max_size=1024)
    application.router.add_get("/metrics", metrics)
    return application
