"""The node's Prometheus metrics. What is Unknown is absent, never zero."""

import hmac
from collections.abc import Callable, Iterable
from enum import Enum

from aiohttp import web

from holdfast.agent.jobstream import Connection
from holdfast.agent.metrics.gpus import write_dcgm, write_gpus
from holdfast.agent.metrics.node import write_itself, write_ranks, write_surroundings
from holdfast.agent.metrics.table import AGENT_METRICS, OWN_METRICS
from holdfast.agent.nodeview import NodeView
from holdfast.api.errors import Unavailable
from holdfast.api.exposition import Page, accepted


class DcgmNames(Enum):
    """Who exports GPU telemetry under DCGM's names. Told twice, every sum over GPUs would count them twice."""

    HERE = "here"
    ELSEWHERE = "elsewhere"


class NodeMetrics:
    """Turns the view into metrics when it is scraped.

    `clock` is CLOCK_MONOTONIC in seconds, `connections` gives the jobs' connections to the watchdog.
    """

    def __init__(
        self,
        view: NodeView,
        *,
        node: str,
        build: tuple[str, str],
        clock: Callable[[], float],
        connections: Callable[[], Iterable[Connection]],
        dcgm: DcgmNames = DcgmNames.HERE,
    ) -> None:
        """`build` is the agent's version, and its only job; empty for an agent of many."""
        self._view = view
        self._node = node
        self._build = build
        self._clock = clock
        self._connections = connections
        self._dcgm = dcgm

    def page(self) -> Page:
        """Every family, also those without a sample now."""
        now, node, view = self._clock(), self._node, self._view
        here = self._dcgm is DcgmNames.HERE
        page = Page(AGENT_METRICS if here else OWN_METRICS)
        page.put("holdfast_agent_build_info", 1, *self._build, node)
        write_itself(page, view, self._connections(), node=node)
        write_ranks(page, view, node=node, now=now)
        write_gpus(page, view, node=node, now=now)
        write_surroundings(page, view, node=node, now=now)
        if here:
            write_dcgm(page, view, node=node)
        return page


def metrics_application(of_node: NodeMetrics, *, token: Callable[[], str]) -> web.Application:
    """GET /metrics for whoever shows the token; 401 with one clear sentence for everybody else.

    The text is OpenMetrics for who accepts that, else the older format.
    """

    async def metrics(request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "")
        try:
            wanted = f"Bearer {token()}"
        except Unavailable:
            return web.json_response({"error": "The agent cannot read its token now."}, status=503)
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode()):
            refusal = {"error": "Send the agent's token as `Authorization: Bearer TOKEN`."}
            return web.json_response(refusal, status=401, headers={"WWW-Authenticate": "Bearer"})
        style = accepted(request.headers.get("Accept", ""))
        return web.Response(body=of_node.page().text(style).encode(), headers={"Content-Type": style.value})

    application = web.Application(client_max_size=1024)
    application.router.add_get("/metrics", metrics)
    return application
