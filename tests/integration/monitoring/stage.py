"""One HTTP server on which everything staged is scraped, as it would be in a cluster."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web
from patience import patient
from prometheus_server import Target
from staged_jobs import NAMED, OF_THE_OPERATOR, SICKNESSES, StagedJobs, StagedOperator, sick_watchdog
from staged_nodes import StagedNode, staged_nodes

from holdfast.agent.exporter import metrics_application
from holdfast.api.exposition import Page, Style

LOOK_INTERVAL_S = 0.1
READY_S_MAX = patient(30.0)
STAGE, SICK = "stage", "sick"
CLASSIC = {"Content-Type": Style.CLASSIC.value}
OF_AN_INSTALLATION = (
    "HoldfastStoreAway",
    "HoldfastNobodyLeads",
    "HoldfastWatchdogSlow",
    "HoldfastNoOperatorLeads",
)


class Stage:
    """`fall_sick` breaks everything at once, each on a node or job of its own; `recover` mends all of it."""

    def __init__(self, token_file: Path) -> None:
        self.nodes = staged_nodes()
        self.jobs = StagedJobs()
        self._token_file = token_file
        self._healthy_operator, self._sick_operator = StagedOperator(), StagedOperator()
        self._sick = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._ready, self._over = threading.Event(), asyncio.Event()
        self._address = ""

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(READY_S_MAX)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(READY_S_MAX)
        self._loop.close()

    def fall_sick(self) -> None:
        self._loop.call_soon_threadsafe(partial(self._change, sick=True))

    def recover(self) -> None:
        self._loop.call_soon_threadsafe(partial(self._change, sick=False))

    def targets(self) -> list[Target]:
        """As the PodMonitors would find them."""
        agents = [
            _target(self._address, f"/nodes/{each.name}/metrics", "agent", **_where(each)) for each in self.nodes
        ]
        return [
            *agents,
            _target(self._address, "/watchdog", "watchdog", namespace=STAGE, pod="w-1"),
            _target(self._address, "/operator", "operator", namespace=STAGE, pod="o-1"),
            _target(self._address, "/sick-watchdog", "watchdog", namespace=SICK, pod="w-1"),
            _target(self._address, "/sick-operator", "operator", namespace=SICK, pod="o-1"),
        ]

    def culprits(self) -> dict[str, dict[str, str]]:
        """Every alert that is staged, with the labels that name who is sick."""
        named = {each.alert: each.culprit for each in self.nodes if each.alert}
        named |= {alert: {"training_job": f"a/{alert}", **NAMED.get(alert, {})} for alert in SICKNESSES}
        named |= {alert: {"training_job": f"a/{alert}", "namespace": SICK} for alert in OF_THE_OPERATOR}
        return named | {alert: {"namespace": SICK} for alert in OF_AN_INSTALLATION}

    def _change(self, *, sick: bool) -> None:
        self._sick = self._sick_operator.sick = sick
        for each in (self.jobs, *self.nodes):
            each.fall_sick() if sick else each.recover()

    async def _serve(self) -> None:
        application = web.Application()
        for node in self.nodes:
            served = metrics_application(node.metrics(), token=self._token)
            served.middlewares.append(_unless_silent(node))
            application.add_subapp(f"/nodes/{node.name}/", served)
        application.router.add_get("/watchdog", _page(self.jobs.watchdog))
        application.router.add_get("/sick-watchdog", _page(lambda: sick_watchdog(sick=self._sick)))
        application.router.add_get("/operator", _text(self._healthy_operator.metrics.text))
        application.router.add_get("/sick-operator", _text(self._sick_operator.metrics.text))
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._address = f"127.0.0.1:{runner.addresses[0][1]}"
        while not self._over.is_set():
            for node in self.nodes:
                node.look()
            self._ready.set()
            await asyncio.sleep(LOOK_INTERVAL_S)
        await runner.cleanup()

    def _token(self) -> str:
        return self._token_file.read_text().strip()


def _target(address: str, path: str, component: str, **labels: str) -> Target:
    part = {"app_kubernetes_io_name": "holdfast", "app_kubernetes_io_component": component}
    return Target(address, {"__metrics_path__": path, **part, **labels})


def _where(node: StagedNode) -> dict[str, str]:
    rack = {"rack": node.rack} if node.rack else {}
    return {"namespace": STAGE, "node": node.name, "pod": f"agent-{node.name}", **rack}


def _unless_silent(node: StagedNode) -> Any:
    @web.middleware
    async def answer(request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
        if node.silent and node.sick_since is not None:
            return web.Response(status=503)
        answered: web.StreamResponse = await handler(request)
        return answered

    return answer


def _page(made: Callable[[], Page]) -> Callable[..., object]:
    return _text(lambda: made().text(Style.CLASSIC).encode())


def _text(made: Callable[[], bytes]) -> Callable[..., object]:
    async def serve(request: web.Request) -> web.Response:
        return web.Response(body=made(), headers=CLASSIC)

    return serve
