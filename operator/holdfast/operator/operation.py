"""The operator put together: what it is told, what watches the cluster always, and what acts while it leads."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from holdfast.api.errors import HoldfastError, InvalidInput, Problem
from holdfast.operator.act.dryrun import DryRun
from holdfast.operator.act.executor import Executor, Kept
from holdfast.operator.act.interventions import Interventions
from holdfast.operator.act.statuswriter import EventRecorder
from holdfast.operator.controller import Controller
from holdfast.operator.decide.allowance import CHECKS_POLICY, COPIES_LAUNCHER, Allowance
from holdfast.operator.decide.belongings import BUDGET, SERVICE
from holdfast.operator.decide.capacity import REQUEST, TEMPLATE
from holdfast.operator.decide.conditionmap import ConditionMap
from holdfast.operator.decide.inqueue import WORKLOAD
from holdfast.operator.decide.observed import PROVISIONING_CLASS, Capacity, Cordoning, HandOn, Mode, Options
from holdfast.operator.kube.cache import Cache
from holdfast.operator.kube.clusterview import ClusterView
from holdfast.operator.kube.elector import Elector
from holdfast.operator.kube.kueue import APIS as KUEUE
from holdfast.operator.kube.kueue import PRIORITIES, flavors, workload_priorities, workloads
from holdfast.operator.kube.objects import (
    BUDGETS,
    CHECKS,
    INTERVENTIONS,
    JOBS,
    NODES,
    POD_TEMPLATES,
    PODS,
    REMEDIATIONS,
    SERVICES,
    Resource,
    capacity_requests,
    text_of,
)
from holdfast.operator.kube.reflector import BLIND_S, Reflector
from holdfast.operator.kube.worklist import Worklist
from holdfast.operator.kube.writes import Writes
from holdfast.operator.metrics import JobConditions, Metrics
from holdfast.operator.scheduler import Scheduler
from holdfast.operator.watchdog import Watchdog
from holdfast.wire.access import Address
from holdfast.wire.backoff import Backoff
from holdfast.wire.kube.client import KubeClient, Request
from holdfast.wire.kube.kubeconfig import Kubeconfig
from holdfast.wire.kube.reply import Absent

logger = logging.getLogger(__name__)

CAPACITY: Final = ("autoscaling.x-k8s.io/v1", "autoscaling.x-k8s.io/v1beta1")


@dataclass(frozen=True)
class Apis:
    """Versions the API server knows of what is used beside (empty: not used)."""

    capacity: str = ""
    kueue: str = ""


@dataclass(frozen=True)
class Settings:
    """Everything the program is told.

    `watchdog`: HOST:PORT, as this program and the pods reach it.
    `watchdog_token_file`: read again for every connection, because projected tokens change.
    `watchdog_ca_file`: who may have signed its certificate; pods get it, too. None: it is spoken to plainly.
    `launcher_image`: carries the launcher into users' images.
    `audience`: of the token that pods show the watchdog.
    `namespaces`: none means all, the way most clusters run one operator.
    `mode`: observe decides and reports without changing anything, for trying Holdfast on a cluster.
    `cordoning`: consume where another remediator takes nodes out of service.
    `condition_map`: which conditions that others set on nodes count, and as what.
    `place_labels`: labels of nodes that name a place, and what each names.
    `hand_on`: how what is proved of nodes is handed on to others.
    `remediation_ttl_s`: how long a remediation that succeeded is kept, for people to read.
    `capacity`: how capacity is asked for when pods find no place; `provisioning_class`: of provisioning requests.
    `kueue`: jobs with the name of a queue wait until Kueue admits them.
    `policy_check_image`: tries a changed policy on the run so far, for jobs that ask for it; empty: none is tried.
    `policy_check_timeout_s`: for how long; 900 s is many times what weeks of 2,000 nodes take.
    `launcher_resources`, `policy_check_resources`: of Holdfast's own containers in the namespaces of jobs.
    `maintenance_taints`: keys that mean "leave this node in good order".
    `lease_namespace`, `lease_name`, `identity`: who of several operators acts.
    `lease_s`: how long a dead leader keeps the others waiting; 15 s survives a busy API server.
    `listen`: HOST:PORT for health and metrics; port 0 takes any free one.
    `metrics_token_file`: who shows this token may read the metrics; nobody when there is none.
    `kubeconfig`: empty takes the pod's own service account.
    `resync_s`: every job is looked at this often though nothing changed; 300 s costs a look, not a write.
    """

    watchdog: str
    watchdog_token_file: Path
    launcher_image: str
    audience: str
    namespaces: tuple[str, ...]
    mode: Mode
    cordoning: Cordoning
    maintenance_taints: tuple[str, ...]
    lease_namespace: str
    lease_name: str
    identity: str
    lease_s: float
    listen: str
    metrics_token_file: Path | None
    kubeconfig: str
    resync_s: float
    watchdog_ca_file: Path | None = None
    condition_map: ConditionMap = field(default_factory=ConditionMap)
    place_labels: tuple[tuple[str, str], ...] = ()
    hand_on: HandOn = HandOn.NOTHING
    remediation_ttl_s: float = 86400.0
    capacity: Capacity = Capacity.PODS
    provisioning_class: str = PROVISIONING_CLASS
    kueue: bool = False
    policy_check_image: str = ""
    policy_check_timeout_s: float = 900.0
    launcher_resources: Allowance = COPIES_LAUNCHER
    policy_check_resources: Allowance = CHECKS_POLICY

    def __post_init__(self) -> None:
        problems: list[Problem] = []
        for flag, text, port in (("--watchdog", self.watchdog, 1), ("--listen", self.listen, 0)):
            fix = f"give HOST:PORT, the port from {port} to 65535"
            try:
                Address.parse(text, given_by=flag, fix=fix, port_min=port)
            except InvalidInput as error:
                problems += error.problems
        for flag, seconds in (
            ("--lease-seconds", self.lease_s),
            ("--resync", self.resync_s),
            ("--policy-check-timeout", self.policy_check_timeout_s),
        ):
            if not seconds >= 1.0:
                problems.append(Problem(flag, seconds, "give 1 seconds or more"))
        if not self.provisioning_class.strip():
            problems.append(Problem("--provisioning-class", self.provisioning_class, "give one"))
        if not self.remediation_ttl_s >= 0.0:
            problems.append(Problem("--remediation-ttl", self.remediation_ttl_s, "give seconds, 0 or more"))
        for flag, text in (("--launcher-image", self.launcher_image), ("--identity", self.identity)):
            if not text.strip():
                problems.append(Problem(flag, text, "give one"))
        if problems:
            raise InvalidInput(*problems)

    @property
    def listen_at(self) -> tuple[str, int]:
        """Host and port of `listen`."""
        address = Address.parse(self.listen, given_by="--listen", port_min=0)
        return address.host, address.port


class Operation:
    """`run` it; `waiting_for` says what is still missing. `wall` is seconds since the epoch."""

    def __init__(self, settings: Settings, metrics: Metrics, wall: Callable[[], float]) -> None:
        self._settings = settings
        self._metrics = metrics
        self._wall = wall
        self._clock = asyncio.get_running_loop().time
        self._api = KubeClient(
            Kubeconfig(settings.kubeconfig),
            lambda verb, code: metrics.api_requests.labels(verb, code).inc(),
            is_near=True,
        )
        self._watchdog = Watchdog(settings.watchdog, settings.watchdog_token_file, settings.watchdog_ca_file)
        self._worklist = Worklist(self._clock, spent_s=time.thread_time)
        self._asked = Worklist(self._clock)
        self._view = ClusterView(self._worklist.add, self._on_node, self._asked.add)
        metrics.watches(lambda: float(len(self._blind())))
        metrics.add(JobConditions(lambda: tuple(self._view.jobs.objects.values())))
        where = (settings.lease_namespace, settings.lease_name)
        self._elector = Elector(self._api, where, settings.identity, settings.lease_s, self._clock, wall)
        self._reflectors: list[Reflector[Any]] = []
        self._scheduler: Scheduler | None = None
        self._watchdog_ca = ""

    def waiting_for(self) -> str:
        """In words, empty when it sees the whole cluster."""
        if not self._reflectors:
            return "the API server"
        unseen = [each.plural for each in self._reflectors if not each.synced.is_set()]
        unheard = {each.plural: each.silent_s() for each in self._blind()}
        return ", ".join((*unseen, *(f"{plural} (silent for {age_s:.0f} s)" for plural, age_s in unheard.items())))

    def _blind(self) -> list[Reflector[Any]]:
        """Those that were told of the cluster, and to which the API server says nothing any more."""
        return [each for each in self._reflectors if each.synced.is_set() and each.silent_s() > BLIND_S]

    async def run(self) -> NoReturn:
        """Until cancelled. Raises InvalidInput or Unavailable at start, Fenced when another operator may lead."""
        # Now, not once it leads: a standby that could never lead is no standby.
        self._watchdog_ca = self._watchdog.authority()
        await self._api.open()
        try:
            apis = await self._apis()
            kinds: list[tuple[Resource[Any], Cache[Any]]] = [
                (JOBS, self._view.jobs),
                (PODS, self._view.pods),
                (CHECKS, self._view.checks),
                (SERVICES, self._view.services),
                (BUDGETS, self._view.budgets),
                (INTERVENTIONS, self._view.interventions),
            ]
            if apis.capacity:
                kinds.append((capacity_requests(apis.capacity), self._view.capacity))
                kinds.append((POD_TEMPLATES, self._view.capacity_templates))
            if apis.kueue:
                kinds.append((workloads(apis.kueue), self._view.workloads))
            watched = [(*kind, namespace) for namespace in self._settings.namespaces or ("",) for kind in kinds]
            of_cluster: list[tuple[Resource[Any], Cache[Any], str]] = [(NODES, self._view.nodes, "")]
            if self._settings.hand_on is HandOn.REMEDIATION:
                of_cluster.append((REMEDIATIONS, self._view.remediations, ""))
            if apis.kueue:
                of_cluster.append((flavors(apis.kueue), self._view.flavors, ""))
                of_cluster.append((workload_priorities(apis.kueue), self._view.workload_priorities, ""))
                of_cluster.append((PRIORITIES, self._view.priorities, ""))
            for resource, cache, namespace in (*watched, *of_cluster):
                count = self._metrics.watch_restarts.labels(resource.plural).inc
                self._reflectors.append(Reflector(self._api, resource, namespace, cache, count))
            async with asyncio.TaskGroup() as watching:
                tasks = [watching.create_task(each.run()) for each in self._reflectors]
                try:
                    await self._lead(apis)
                finally:
                    for task in tasks:
                        task.cancel()
        finally:
            await self._watchdog.close()
            await self._api.close()
        raise AssertionError("leading ends by an error")

    async def _apis(self) -> Apis:
        """The versions this API server knows; waits for the server. Raises InvalidInput."""
        kueue = await self._newest(KUEUE) if self._settings.kueue else ""
        if self._settings.kueue and not kueue:
            # Other jobs train without it; those with a queue's name say what is missing.
            logger.warning("the API server knows no Workload of Kueue; jobs with a queue's name get no pods")
        if self._settings.capacity is not Capacity.PROVISIONING_REQUEST:
            return Apis(kueue=kueue)
        if capacity := await self._newest(CAPACITY):
            return Apis(capacity, kueue)
        fix = "install its definition, which comes with the cluster autoscaler, or say pods"
        given = f"{self._settings.capacity.value}, and the API server knows no ProvisioningRequest"
        raise InvalidInput(Problem("--capacity", given, fix))

    async def _newest(self, apis: tuple[str, ...]) -> str:
        """The first of them that the API server has, empty for none."""
        for api in apis:
            if await self._knows(api):
                return api
        return ""

    async def _knows(self, api: str) -> bool:
        """Whether the API server has that group and version."""
        backoff, told = Backoff(0.5, 15.0), ""
        while True:
            try:
                await self._api.ask(Request("GET", f"/apis/{api}"))
                return True
            except Absent:
                return False
            except HoldfastError as error:
                if str(error) != told:
                    told = str(error)
                    logger.warning("waiting for the API server error=%s", error)
            await asyncio.sleep(backoff.next_s())

    async def _lead(self, apis: Apis) -> None:
        for reflector in self._reflectors:
            await reflector.synced.wait()
        await self._elector.win()
        work = asyncio.create_task(self._work(apis))
        lease = asyncio.create_task(self._elector.keep())
        try:
            done, _ = await asyncio.wait((work, lease), return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            # In this order: what acts has stopped before the lease is given to another.
            for task in (work, lease):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await self._elector.release()

    async def _work(self, apis: Apis) -> None:
        settings, view, metrics = self._settings, self._view, self._metrics
        options = Options(
            watchdog=settings.watchdog,
            watchdog_ca=self._watchdog_ca,
            launcher_image=settings.launcher_image,
            audience=settings.audience,
            mode=settings.mode,
            cordoning=settings.cordoning,
            maintenance_taints=settings.maintenance_taints,
            condition_map=settings.condition_map,
            place_labels=settings.place_labels,
            hand_on=settings.hand_on,
            remediation_ttl_s=settings.remediation_ttl_s,
            capacity=settings.capacity,
            capacity_api=apis.capacity,
            provisioning_class=settings.provisioning_class,
            kueue=settings.kueue,
            kueue_api=apis.kueue,
            check_image=settings.policy_check_image,
            check_s=settings.policy_check_timeout_s,
            launcher_resources=settings.launcher_resources,
            check_resources=settings.policy_check_resources,
        )
        owned: dict[str, Kept] = {
            SERVICE: (SERVICES, view.services),
            BUDGET: (BUDGETS, view.budgets),
            REQUEST: (capacity_requests(apis.capacity), view.capacity),
            TEMPLATE: (POD_TEMPLATES, view.capacity_templates),
            WORKLOAD: (workloads(apis.kueue), view.workloads),
        }
        writes = Writes(self._api, self._elector.leads)

        def wall() -> str:
            return text_of(self._wall())

        recorder = EventRecorder(writes, settings.identity, wall)
        executor = Executor(
            view,
            writes,
            self._watchdog,
            recorder,
            owned=owned,
            done=lambda kind: metrics.actions.labels(kind).inc(),
            wall=wall,
        )
        dry_run = DryRun(writes, options, self._clock)
        controller = Controller(view, writes, executor, recorder, dry_run, options, self._wall)
        scheduler = Scheduler(view, self._worklist, controller, self._watchdog, metrics, settings.resync_s)
        self._scheduler = scheduler
        metrics.follow(
            lambda: len(self._worklist), lambda: float(self._elector.leads()), lambda: float(scheduler.connected)
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(scheduler.run())
            if settings.mode is Mode.ACT:
                interventions = Interventions(
                    view, self._asked, writes, self._watchdog, self._wall, settings.cordoning, settings.hand_on
                )
                group.create_task(interventions.run())

    def _on_node(self, node: str) -> None:
        if self._scheduler is not None:
            self._scheduler.node_changed(node)
