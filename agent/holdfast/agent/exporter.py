"""The node's Prometheus metrics. What is Unknown is absent, never zero.

GPU telemetry keeps the names, labels and units of dcgm-exporter 4.8 and older, which existing dashboards and
alert rules know. Source: https://docs.nvidia.com/datacenter/dcgm/latest/dcgm-api/dcgm-api-field-ids.html
"""

import hmac
from collections.abc import Callable, Iterable, Iterator

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.agent.picture import Picture
from holdfast.api.errors import Unavailable
from holdfast.api.telemetry import GpuHealth, GpuSample, RankSample

RANK_GAUGES: tuple[tuple[str, str, Callable[[RankSample], float | None]], ...] = (
    ("holdfast_rank_step", "Last completed optimizer step of the round.", lambda rank: rank.step),
    ("holdfast_rank_loss", "Loss as last published.", lambda rank: rank.loss),
    ("holdfast_rank_grad_norm", "Gradient norm as last published.", lambda rank: rank.grad_norm),
    ("holdfast_rank_step_seconds", "Duration of the last step.", lambda rank: rank.step_time_s),
)
GPU_GAUGES: tuple[tuple[str, str, Callable[[GpuSample], float | None]], ...] = (
    ("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", lambda gpu: gpu.temperature_c),
    ("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C).", lambda gpu: gpu.memory_temperature_c),
    ("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", lambda gpu: gpu.power_w),
    ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", lambda gpu: _percent(gpu.utilization_ratio)),
    ("holdfast_gpu_healthy", "1: healthy, 0: failed; absent: unknown.", lambda gpu: _healthy(gpu.health)),
)
_GPU_LABELS = ("gpu", "UUID", "Hostname")
_RANK_LABELS = ("training_job", "rank")


class NodeCollector(Collector):
    """Turns the picture into metrics when it is scraped.

    `job` is the agent's only one, empty for an agent of many. `clock` is CLOCK_MONOTONIC in seconds.
    """

    def __init__(self, picture: Picture, *, node: str, job: str, version: str, clock: Callable[[], float]) -> None:
        self._picture = picture
        self._node = node
        self._job = job
        self._version = version
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Every family, also those without a sample now."""
        info = GaugeMetricFamily(
            "holdfast_agent_build_info", "The agent's version.", labels=("version", "training_job", "node")
        )
        info.add_metric((self._version, self._job, self._node), 1)
        yield info
        yield from self._ranks()
        yield from self._gpus(self._picture.node.gpus)
        unreadable = GaugeMetricFamily(
            "holdfast_sensor_unreadable", "1 for a source that cannot be read now.", labels=("source",)
        )
        for source in sorted(self._picture.unreadable()):
            unreadable.add_metric((source,), 1)
        yield unreadable

    def _ranks(self) -> Iterator[Metric]:
        newest = [
            (job, rank) for job, reading in self._picture.jobs.items() for rank in _newest_round(reading.ranks)
        ]
        for name, text, value_of in RANK_GAUGES:
            family = GaugeMetricFamily(name, text, labels=_RANK_LABELS)
            for job, rank in newest:
                _add(family, (job, str(rank.rank)), value_of(rank))
            yield family
        age = GaugeMetricFamily(
            "holdfast_rank_progress_age_seconds",
            "Since the training loop last published anything.",
            labels=_RANK_LABELS,
        )
        for job, rank in newest:
            looked_s = max(0.0, self._clock() - self._picture.read_at)
            age.add_metric((job, str(rank.rank)), rank.progress_age_s + looked_s)
        yield age

    def _gpus(self, gpus: tuple[GpuSample, ...]) -> Iterator[Metric]:
        labels = {gpu.uuid: (str(gpu.index), gpu.uuid, self._node) for gpu in gpus}
        for name, text, value_of in GPU_GAUGES:
            family = GaugeMetricFamily(name, text, labels=_GPU_LABELS)
            for gpu in gpus:
                _add(family, labels[gpu.uuid], value_of(gpu))
            yield family
        last = GaugeMetricFamily(
            "DCGM_FI_DEV_XID_ERRORS", "Value of the last XID error encountered.", labels=_GPU_LABELS
        )
        for uuid, xid in self._picture.last_xid.items():
            last.add_metric(labels.get(uuid, ("", uuid, self._node)), xid)
        yield last
        total = CounterMetricFamily("holdfast_xid_errors", "XID errors seen.", labels=(*_GPU_LABELS, "xid"))
        for (uuid, xid), count in self._picture.xids.items():
            total.add_metric((*labels.get(uuid, ("", uuid, self._node)), str(xid)), count)
        yield total


def metrics_application(collector: Collector, *, token: Callable[[], str]) -> web.Application:
    """GET /metrics for whoever shows the token; 401 with one clear sentence for everybody else."""
    registry = CollectorRegistry()
    registry.register(collector)

    async def metrics(request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "")
        try:
            wanted = f"Bearer {token()}"
        except Unavailable:
            return web.json_response({"error": "The agent cannot read its token now."}, status=503)
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode()):
            refusal = {"error": "Send the agent's token as `Authorization: Bearer TOKEN`."}
            return web.json_response(refusal, status=401, headers={"WWW-Authenticate": "Bearer"})
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application(client_max_size=1024)
    application.router.add_get("/metrics", metrics)
    return application


def _newest_round(ranks: Iterable[RankSample]) -> Iterable[RankSample]:
    """A node may hold a leftover record of an older round: the newest round's word on a rank counts."""
    return {rank.rank: rank for rank in sorted(ranks, key=lambda rank: rank.round)}.values()


def _add(family: GaugeMetricFamily, labels: tuple[str, ...], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else 100.0 * ratio


def _healthy(health: GpuHealth) -> float | None:
    return None if health is GpuHealth.UNKNOWN else float(health is GpuHealth.HEALTHY)
