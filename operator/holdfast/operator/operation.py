"""The operator put together: what watches the cluster always, and what acts while it leads."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.api.errors import HoldfastError
from holdfast.operator.act.dryrun import DryRun
from holdfast.operator.act.executor import Applier
from holdfast.operator.act.interventions import Interventions
from holdfast.operator.act.statuswriter import EventRecorder
from holdfast.operator.backoff import Backoff
from holdfast.operator.controller import Controller, Hands
from holdfast.operator.decide.observed import Mode, Options
from holdfast.operator.decide.recorded import read_recorded
from holdfast.operator.kube.cache import Cache
from holdfast.operator.kube.clusterview import ClusterView
from holdfast.operator.kube.elector import Elector
from holdfast.operator.kube.objects import (
    INTERVENTIONS,
    JOBS,
    NODES,
    PODS,
    SERVICES,
    Job,
    Resource,
    budgets,
    text_of,
)
from holdfast.operator.kube.reflector import Reflector
from holdfast.operator.kube.worklist import Worklist
from holdfast.operator.kube.writes import Writes
from holdfast.operator.metrics import Metrics
from holdfast.operator.scheduler import Foreman
from holdfast.operator.settings import Settings
from holdfast.operator.watchdog import Watchdog
from holdfast.wire.kube.client import KubeClient, Request
from holdfast.wire.kube.kubeconfig import Kubeconfig
from holdfast.wire.kube.reply import Absent

VALUES = {"True": 1.0, "False": 0.0}

logger = logging.getLogger(__name__)

BUDGETS_NEW = "policy/v1"  # since 1.21
BUDGETS_OLD = "policy/v1beta1"


class Operation:
    """`run` it; `waiting_for` says what is still missing. `wall` is seconds since the epoch."""

    def __init__(self, settings: Settings, metrics: Metrics, wall: Callable[[], float]) -> None:
        loop = asyncio.get_running_loop()
        self._settings = settings
        self._metrics = metrics
        self._wall = wall
        self._clock = loop.time
        self._api = KubeClient(Kubeconfig(settings.kubeconfig), self._count_request)
        self._watchdog = Watchdog(settings.watchdog, settings.watchdog_token_file, settings.watchdog_ca_file)
        self._worklist = Worklist(self._clock, spent_s=time.thread_time)
        self._asked = Worklist(self._clock)
        self._view = ClusterView(self._worklist.add, self._on_node, self._asked.add)
        metrics.add(JobConditions(lambda: tuple(self._view.jobs.objects.values())))
        self._elector = Elector(
            self._api,
            (settings.lease_namespace, settings.lease_name),
            settings.identity,
            settings.lease_s,
            self._clock,
            wall,
        )
        self._reflectors: list[Reflector[Any]] = []
        self._foreman: Foreman | None = None
        self._watchdog_ca = ""

    def waiting_for(self) -> str:
        """In words, empty when it sees the whole cluster."""
        if not self._reflectors:
            return "the API server"
        return ", ".join(each.plural for each in self._reflectors if not each.synced.is_set())

    async def run(self) -> NoReturn:
        """Until cancelled. Raises InvalidInput or Unavailable at start, Fenced when another operator may lead."""
        # Now, not once it leads: a standby that could never lead is no standby.
        self._watchdog_ca = self._watchdog.authority()
        await self._api.open()
        try:
            resource = budgets(await self._budget_api())
            self._watch_everything(resource)
            async with asyncio.TaskGroup() as watching:
                tasks = [watching.create_task(each.run()) for each in self._reflectors]
                try:
                    await self._lead(resource)
                finally:
                    for task in tasks:
                        task.cancel()
        finally:
            await self._watchdog.close()
            await self._api.close()
        raise AssertionError("leading ends by an error")

    async def _lead(self, resource: Resource[Any]) -> None:
        for reflector in self._reflectors:
            await reflector.synced.wait()
        await self._elector.win()
        work = asyncio.create_task(self._work(resource))
        lease = asyncio.create_task(self._elector.keep())
        try:
            done, _ = await asyncio.wait((work, lease), return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            # In this order: what acts has stopped before the lease is given to another.
            await _stop(work)
            await _stop(lease)
            await self._elector.release()

    async def _work(self, resource: Resource[Any]) -> None:
        settings = self._settings
        options = Options(
            watchdog=settings.watchdog,
            watchdog_ca=self._watchdog_ca,
            launcher_image=settings.launcher_image,
            audience=settings.audience,
            mode=settings.mode,
            cordoning=settings.cordoning,
            maintenance_taints=settings.maintenance_taints,
            budget_api=resource.prefix.removeprefix("/apis/"),
        )
        writes = Writes(self._api, self._elector.leads)
        applier = Applier(self._view, writes, self._watchdog, resource, self._count_action, self._wall_text)
        recorder = EventRecorder(writes, settings.identity, self._wall_text)
        hands = Hands(writes, applier, recorder, DryRun(writes, options, self._clock))
        controller = Controller(self._view, hands, options, self._wall)
        self._foreman = Foreman(
            self._view, self._worklist, controller, self._watchdog, self._metrics, resync_s=settings.resync_s
        )
        self._metrics.follow(
            lambda: len(self._worklist), lambda: float(self._elector.leads()), lambda: self._connected()
        )
        interventions = Interventions(
            self._view, self._asked, writes, self._watchdog, self._wall, cordoning=settings.cordoning
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(self._foreman.run())
            if settings.mode is Mode.ACT:
                group.create_task(interventions.run())

    def _watch_everything(self, resource: Resource[Any]) -> None:
        view, everywhere = self._view, self._settings.namespaces or ("",)
        for namespace in everywhere:
            self._reflect(JOBS, namespace, view.jobs)
            self._reflect(PODS, namespace, view.pods)
            self._reflect(SERVICES, namespace, view.services)
            self._reflect(resource, namespace, view.budgets)
            self._reflect(INTERVENTIONS, namespace, view.interventions)
        self._reflect(NODES, "", view.nodes)

    def _reflect(self, resource: Resource[Any], namespace: str, cache: Cache[Any]) -> None:
        count = self._metrics.watch_restarts.labels(resource.plural).inc
        self._reflectors.append(Reflector(self._api, resource, namespace, cache, count))

    async def _budget_api(self) -> str:
        """The version of disruption budgets this API server knows; waits for the server."""
        backoff, told = Backoff(0.5, 15.0), ""
        while True:
            try:
                await self._api.ask(Request("GET", f"/apis/{BUDGETS_NEW}"))
                return BUDGETS_NEW
            except Absent:
                return BUDGETS_OLD
            except HoldfastError as error:
                if str(error) != told:
                    told = str(error)
                    logger.warning("waiting for the API server error=%s", error)
            await asyncio.sleep(backoff.next_s())

    def _connected(self) -> float:
        return float(self._foreman.connected) if self._foreman is not None else 0.0

    def _on_node(self, node: str) -> None:
        if self._foreman is not None:
            self._foreman.node_changed(node)

    def _count_request(self, verb: str, code: str) -> None:
        self._metrics.api_requests.labels(verb, code).inc()

    def _count_action(self, kind: str) -> None:
        self._metrics.actions.labels(kind).inc()

    def _wall_text(self) -> str:
        return text_of(self._wall())


async def _stop(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# The conditions of all jobs as Prometheus metrics, for alerts. What is Unknown is absent, never zero.


class JobConditions(Collector):
    """Reads the jobs' status when somebody asks, so that a standby and a restarted operator say the same."""

    def __init__(self, jobs: Callable[[], Iterable[Job]]) -> None:
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        """One sample per job and condition."""
        family = GaugeMetricFamily(
            "holdfast_job_condition",
            "1: the job's condition is True, 0: it is False; absent: Unknown.",
            labels=("training_job", "condition"),
        )
        for job in self._jobs():
            name = f"{job.metadata.namespace}/{job.metadata.name}"
            recorded, _ = read_recorded(job.status)
            for condition in recorded.conditions:
                if (value := VALUES.get(condition.status)) is not None:
                    family.add_metric((name, condition.type), value)
        yield family
