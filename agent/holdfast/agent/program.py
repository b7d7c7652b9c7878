"""The agent as a program: `python -m holdfast.agent`.

Exit codes: 0 after SIGTERM or SIGINT, 2 for a wrong command line, 3 when something needed is not there.
"""

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from aiohttp import web

from holdfast.agent.conditions.memory import write_whole
from holdfast.agent.jobstream import JobStream, JobStreams, Reporter
from holdfast.agent.metrics.exporter import DcgmNames, NodeMetrics, metrics_application
from holdfast.agent.nodeview import NodeView
from holdfast.agent.outbox import Outbox
from holdfast.agent.readiness import Readiness, asking
from holdfast.agent.sensing import LOOK_INTERVAL_S, Sensing, node_sensors
from holdfast.agent.sensors.process import PidMap
from holdfast.agent.settings import AgentSettings, parse_settings
from holdfast.agent.tenants import KubeletPods, OneTenant, PodNames, Tenants
from holdfast.api.errors import InvalidInput, Unavailable
from holdfast.api.telemetry import AgentHello
from holdfast.wire.access import Address, read_token
from holdfast.wire.door import HELLO_S, Door, listen, raise_open_files_max

# Source: prctl(2), https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
_PR_SET_PDEATHSIG: Final = 1

_LOG = logging.getLogger(__name__)

WHERE_FILE_NAME: Final = "agent.json"  # in the run directory: where the metrics are served


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent until a signal ends it. Returns the exit code."""
    parent_pid = os.getppid()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    try:
        settings = parse_settings(sys.argv[1:] if arguments is None else arguments)
        if settings.die_with_parent:
            die_with(parent_pid)
        asyncio.run(serve(settings))
    except InvalidInput as error:
        print(f"holdfast agent: {error}", file=sys.stderr)  # noqa: T201 - a user's mistake is answered, not logged
        return 2
    except Unavailable as error:
        print(f"holdfast agent: {error}", file=sys.stderr)  # noqa: T201 - the same
        return 3
    return 0


async def serve(settings: AgentSettings) -> None:
    """Sense, report and export until SIGTERM or SIGINT. Raises Unavailable."""
    if settings.run_dir is not None:
        try:
            os.makedirs(settings.run_dir, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"Cannot make the run directory {settings.run_dir}: {error.strerror}.") from error
    # What is missing is said at the start, not at the first connection or scrape.
    settings.watchdog.credential.read()
    read_token(settings.metrics_token_file)
    if settings.kubelet_pods is not None:
        tenants: Tenants = KubeletPods(settings.kubelet_pods, PodNames(settings.kubelet_pod_logs))
    else:
        assert settings.job is not None, "settings are of one job or of the kubelet's pods"
        assert settings.run_dir is not None
        tenants = OneTenant(settings.job, settings.run_dir)
    view = NodeView()
    streams = JobStreams(partial(_begin_stream, settings), PidMap())
    sensors = node_sensors(settings)
    sensing = Sensing(sensors, tenants=tenants, streams=streams, view=view)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async def look_again_and_again() -> None:
        while True:
            now = time.monotonic()
            sensing.look(now)
            for stream in streams:
                if stream.outbox.is_due(now):
                    stream.reporter.wake()
            await asyncio.sleep(max(0.0, now + LOOK_INTERVAL_S - time.monotonic()))

    async with _metrics(settings, view, streams):
        tasks = [asyncio.create_task(look_again_and_again()), asyncio.create_task(stop.wait())]
        done, running = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await streams.close()
        sensors.close()
        for task in done:
            task.result()


def _begin_stream(settings: AgentSettings, job: str) -> JobStream:
    """Each stream numbers its reports from one, so each has a boot of its own."""
    boot = secrets.token_hex(8)
    outbox = Outbox(node=settings.node, boot=boot, interval_s=settings.interval_s)
    hello = AgentHello(node=settings.node, boot=boot, job=job)
    return JobStream(job, outbox, Reporter(outbox, hello, settings.watchdog))


@contextlib.asynccontextmanager
async def _metrics(settings: AgentSettings, view: NodeView, streams: JobStreams) -> AsyncIterator[None]:
    """Serve them, and publish where in the run directory, for others on this machine."""
    try:
        build = version("holdfast")
    except PackageNotFoundError:
        build = "unknown"
    of_node = NodeMetrics(
        view,
        node=settings.node,
        build=(build, settings.job or ""),
        clock=time.monotonic,
        connections=streams.connections,
        dcgm=DcgmNames.HERE if settings.dcgm_exporter is None else DcgmNames.ELSEWHERE,
    )
    application = metrics_application(of_node, token=lambda: read_token(settings.metrics_token_file))
    readiness = Readiness(streams.connections, asking(settings.watchdog))
    application.router.add_get("/readyz", readiness.answer)
    try:
        door = Door(listen(settings.listen.host, settings.listen.port), files=raise_open_files_max())
    except OSError as error:
        raise Unavailable(f"Cannot serve metrics on {settings.listen}: {error.strerror}.") from error
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0, keepalive_timeout=HELLO_S)
    await runner.setup()
    try:
        assert runner.server is not None
        door.open(runner.server)
        host, port = door.address
        _LOG.info("metrics served: at=%s", Address(host, port))
        if settings.run_dir is not None:
            path = os.path.join(settings.run_dir, WHERE_FILE_NAME)
            where = {"node": settings.node, "host": host, "port": port, "pid": os.getpid()}
            try:
                write_whole(path, json.dumps(where).encode())
            except OSError as error:
                raise Unavailable(f"Cannot write {path}: {error.strerror}.") from error
        yield
    finally:
        await door.close()
        await runner.cleanup()


# Tying this process's life to its starter's.


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent, `parent_pid`, dies; exit now if it already has.

    Raises Unavailable where the kernel has no such service.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise Unavailable(f"The kernel does not tie lives: {os.strerror(ctypes.get_errno())}.")
    if os.getppid() != parent_pid:
        raise SystemExit(0)  # it died between our start and the call above
