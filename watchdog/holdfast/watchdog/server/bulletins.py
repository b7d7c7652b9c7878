"""What who publishes a job asks once a second (`api.bulletin`)."""

import statistics
from collections.abc import Iterable
from typing import Final

import msgspec
from aiohttp import web

from holdfast.api.bulletin import Bulletin, GpuFigures, Spread
from holdfast.api.telemetry import GpuSample
from holdfast.watchdog.brain.rewinds import final_step
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.jobs import hosted, whole

GPUS_EVERY_S: Final = 10.0
"""The figures of 100,000 GPUs take a tenth of a second to make, and change slowly."""


async def bulletin(request: web.Request) -> web.Response:
    """As msgpack: what a script logs may be no JSON number. `after` and `life` name what is known already."""
    host = hosted(request)
    after, life = whole(request, "after", 0), request.query.get("life", "")
    content = msgspec.msgpack.encode(bulletin_of(host, after=after, life=life))
    return web.Response(body=content, content_type="application/vnd.msgpack")


def bulletin_of(host: JobHost, *, after: int, life: str) -> Bulletin:
    """The job as it is now."""
    state, policy = host.job.shown, host.job.state.policy
    scalars, lost = host.scalars.after(host.job.name, after, life)
    return Bulletin(
        job=host.job.name,
        uid="" if policy is None else policy.uid,
        reporting=None if policy is None else policy.reporting,
        round=None if state.round is None else state.round.number,
        since=state.restored_step,
        final=final_step(state),
        life=host.scalars.life,
        scalars=scalars,
        lost=lost,
        gpus=_gpus(host),
    )


def _gpus(host: JobHost) -> GpuFigures:
    now = host.clock.now()
    if host.gpu_figures is None or now >= host.gpu_figures[0] + GPUS_EVERY_S:
        gpus = [gpu for report in host.taken.values() for gpu in report.gpus]
        host.gpu_figures = now, figures_of(gpus)
    return host.gpu_figures[1]


def figures_of(gpus: Iterable[GpuSample]) -> GpuFigures:
    """What those that tell say."""
    told = list(gpus)
    return GpuFigures(
        temperature_c=_spread(gpu.temperature_c for gpu in told),
        power_w=_spread(gpu.power_w for gpu in told),
        utilization_ratio=_spread(gpu.utilization_ratio for gpu in told),
    )


def _spread(values: Iterable[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(min(known), statistics.median(known), max(known)) if known else None
