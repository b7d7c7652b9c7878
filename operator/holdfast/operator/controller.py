"""One look at one job: see all of it, decide (pure), carry out, write the status, then say what happened."""

import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from holdfast.api.errors import Fenced, HoldfastError, InvalidInput, InvalidSpec
from holdfast.api.gpus import Uncounted
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.act.dryrun import ASK_AGAIN_S, DryRun
from holdfast.operator.act.executor import Executor, Fault
from holdfast.operator.act.gpucounts import ASK_AGAIN_S as COUNT_AGAIN_S
from holdfast.operator.act.gpucounts import Count, GpuCounts
from holdfast.operator.act.statuswriter import EventRecorder, write_status
from holdfast.operator.decide.action import KubeEvent, StartCheck, Tell
from holdfast.operator.decide.admission import Contender, contender
from holdfast.operator.decide.events import only_now, unsaid
from holdfast.operator.decide.observed import (
    UNTRIED,
    Observed,
    Options,
    Outcome,
    Queueing,
    read_spec,
)
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.kube.clusterview import ClusterView, key_of
from holdfast.operator.kube.objects import CHANGE, Job
from holdfast.operator.kube.writes import Writes
from holdfast.operator.watchdog import JobLine
from holdfast.wire.kube.reply import Conflicting, Declined

logger = logging.getLogger(__name__)

NUMBER: Final = re.compile(r"[0-9]+")


class Trouble(HoldfastError):
    """Something of a look failed: it is to be repeated. What did not depend on it was done."""


@dataclass(frozen=True)
class Reading:
    """What a user wrote of a job as read, while it stays the same, with what the cluster says of its claims."""

    uid: str
    generation: int
    gpus: Count
    runs_with: int | None
    spec: TrainingJob | InvalidSpec


@dataclass
class Controller:
    """Looks at jobs when told to. `now` is wall seconds."""

    view: ClusterView
    writes: Writes
    executor: Executor
    recorder: EventRecorder
    dry_run: DryRun
    options: Options
    now: Callable[[], float]
    _gpus: GpuCounts = field(init=False)
    _readings: dict[str, Reading] = field(default_factory=dict, init=False)
    _runs_with: dict[str, tuple[str, int]] = field(default_factory=dict, init=False)
    """The uid of each job that the watchdog knows, and how many workers of it run on a node."""
    _told: dict[str, str] = field(default_factory=dict, init=False)
    _refusals: dict[str, frozenset[KubeEvent]] = field(default_factory=dict, init=False)
    _unchecked: dict[str, tuple[str, float, str]] = field(default_factory=dict, init=False)
    """Of the change that a pod was to try: since when none could be made (-inf: for good), and why."""

    def __post_init__(self) -> None:
        self._gpus = GpuCounts(self.writes, self.now)

    async def look(self, job: Job, line: JobLine) -> float | None:
        """One look. When to look again though nothing changes, None: no need. Raises Trouble, Fenced."""
        known = line.report.policy if line.report is not None else None
        if known is not None:
            self._runs_with[key_of(job.metadata)] = (known.uid, known.processes_per_node)
        gpus = await self._gpus_of(job, line)
        key, spec, trial = key_of(job.metadata), self._read(job, gpus), UNTRIED
        if isinstance(spec, TrainingJob) and job.metadata.deletion_timestamp is None:
            trial = await self.dry_run.trial(spec)
        # Nothing is awaited from here to the decision: what is seen is of one moment.
        rivals: tuple[Contender, ...] = ()
        if self._contender(job) is not None:  # seldom: most jobs have the nodes they need
            others = (each for each in self.view.jobs.objects.values() if each.metadata.uid != job.metadata.uid)
            rivals = tuple(each for each in map(self._contender, others) if each is not None)
        remediations = self.view.remediations_by_node
        jobs = self.view.jobs.objects.values() if remediations else ()
        observed = Observed(
            job=job,
            spec=spec,
            pods=self.view.pods_of(job),
            nodes=self.view.nodes_by_name,
            services=self.view.services_of(job),
            budgets=self.view.budgets_of(job),
            plan=line.plan,
            report=line.report,
            heard_age_s=line.heard_age_s(),
            trial=trial,
            rivals=rivals,
            remediations=remediations,
            alive=frozenset(each.metadata.uid for each in jobs),
            capacity=self.view.capacity_of(job),
            capacity_templates=self.view.capacity_templates_of(job),
            queueing=self._queueing(job),
            checks=self.view.checks_of(job),
            check_refused=self._refused_checks(key),
        )
        outcome = reconcile(observed, self.options, self.now())
        if self._told.get(key) != outcome.reason:
            self._told[key] = outcome.reason
            logger.info("decided job=%s reason=%s", key, outcome.reason)
        line.tell(each.observed for each in outcome.actions if isinstance(each, Tell))
        faults = await self.executor.apply(job, outcome.actions)
        self._remember_check(key, outcome, faults)
        await self._tell_people(job, outcome, faults)
        asks = [ASK_AGAIN_S] * (trial.refused is not None) + [COUNT_AGAIN_S] * isinstance(gpus, Uncounted)
        return min((outcome.requeue_after_s or math.inf, *asks)) if asks else outcome.requeue_after_s

    def forget(self, key: str) -> None:
        """The job is gone."""
        self._readings.pop(key, None)
        self._told.pop(key, None)
        self._refusals.pop(key, None)
        self._runs_with.pop(key, None)
        self._unchecked.pop(key, None)
        self.dry_run.forget(key)
        self._gpus.forget(key)

    async def _gpus_of(self, job: Job, line: JobLine) -> Count:
        """What the cluster says of its claims. Of a job that is known already, a claim that was deleted since says
        nothing: what it held is what the watchdog was told.
        """
        counted, known = await self._gpus.of(job), line.report.policy if line.report is not None else None
        about = (job.metadata.uid, job.metadata.generation)
        if isinstance(counted, Uncounted) and known is not None and (known.uid, known.generation) == about:
            return known.processes_per_node
        return counted

    def _read(self, job: Job, gpus: Count) -> TrainingJob | InvalidSpec:
        uid, runs = self._runs_with.get(key := key_of(job.metadata), ("", 0))
        runs_with = runs if uid == job.metadata.uid else None
        written = (job.metadata.uid, job.metadata.generation, gpus, runs_with)
        held = self._readings.get(key)
        if held is None or (held.uid, held.generation, held.gpus, held.runs_with) != written:
            held = self._readings[key] = Reading(*written, read_spec(job, gpus, runs_with))
        return held.spec

    def _queueing(self, job: Job) -> Queueing | None:
        """What is seen of Kueue, None where it is not used."""
        if not self.options.kueue_api:
            return None
        view = self.view
        priorities = {name: each.value for (_, name), each in view.priorities.objects.items()}
        for each in view.priorities.objects.values():
            if each.global_default:
                priorities[""] = each.value
        return Queueing(
            workloads=view.workloads_of(job),
            flavors={name: each for (_, name), each in view.flavors.objects.items()},
            workload_priorities={name: each.value for (_, name), each in view.workload_priorities.objects.items()},
            priorities=priorities,
        )

    def _contender(self, job: Job) -> Contender | None:
        """The job as it contends for nodes, None when it does not."""
        spec = self._read(job, self._gpus.known(job))
        return contender(job, spec, self.view.pods_of(job)) if isinstance(spec, TrainingJob) else None

    def _refused_checks(self, key: str) -> Mapping[str, str]:
        """What is said against a checking pod: of the pod itself, or for as long as one may take."""
        change, since, says = self._unchecked.get(key, ("", math.inf, ""))
        return {change: says} if self.now() >= since + self.options.check_s else {}

    def _remember_check(self, key: str, outcome: Outcome, faults: list[Fault]) -> None:
        started = next((each for each in outcome.actions if isinstance(each, StartCheck)), None)
        if started is None:
            return
        change = started.pod["metadata"]["annotations"][CHANGE]
        said = next((error for action, error in faults if action is started), None)
        before = self._unchecked.pop(key, None)
        if isinstance(said, Conflicting) or said is None:
            return
        since = before[1] if before is not None and before[0] == change else self.now()
        is_final = isinstance(said, Declined | InvalidInput)  # else it is an outage, perhaps
        self._unchecked[key] = (change, -math.inf if is_final else since, str(said))

    async def _tell_people(self, job: Job, outcome: Outcome, faults: list[Fault]) -> None:
        """Status and events, though some action failed; then Trouble for what did."""
        key = key_of(job.metadata)
        events = unsaid(outcome.events, [action for action, _ in faults])
        news = self._news_of(key, faults)
        newest = self.view.job(key)
        troubles = [f"{type(action).__name__}: {error}" for action, error in faults]
        if newest is None or newest.metadata.uid != job.metadata.uid:
            events = only_now(events)  # let go by this very look: what was done last is still told
        elif outcome.status is not None:
            try:
                await write_status(self.view, self.writes, newest, outcome.status)
            except Fenced:
                raise
            except HoldfastError as error:
                troubles.append(f"status: {error}")
                events = only_now(events)
        try:
            for event in (*news, *events):
                await self.recorder.record(job, event)
        except Fenced:
            raise
        except HoldfastError as error:
            troubles.append(f"event: {error}")
        if troubles:
            raise Trouble("; ".join(dict.fromkeys(troubles)))

    def _news_of(self, key: str, faults: list[Fault]) -> list[KubeEvent]:
        """What stays until somebody puts it right, when it is not the same as the last time but for numbers.

        A quota refuses each of thousands of pods, by another name with each try. A race or an outage is no news.
        """
        events: dict[KubeEvent, KubeEvent] = {}
        for action, error in faults:
            if isinstance(error, Declined | InvalidInput) and not isinstance(error, Conflicting):
                event = KubeEvent(f"{type(action).__name__}Failed", str(error), warning=True)
                events.setdefault(msgspec.structs.replace(event, message=NUMBER.sub("0", event.message)), event)
        known, self._refusals[key] = self._refusals.get(key, frozenset()), frozenset(events)
        return [event for alike, event in events.items() if alike not in known]
