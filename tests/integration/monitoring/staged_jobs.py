"""Jobs, a watchdog and an operator that a test makes sick: the real writers of metrics over made-up states."""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from holdfast.api.event import FindingMade
from holdfast.api.exposition import Page
from holdfast.api.finding import Confidence, Finding, FindingKind, Subject
from holdfast.api.incident import Incident, IncidentState, Moment
from holdfast.api.plan import NodeOrder
from holdfast.api.policy import EvictionBudget, GpuHour, ModelFlops, Policy, RestartBudget
from holdfast.api.round import Endpoint, Entry, MemberRanks, Restore, Round
from holdfast.api.status import Checkpoint, JobPhase
from holdfast.operator.jobconditions import JobConditions
from holdfast.operator.metrics import Metrics
from holdfast.operator.objects import Job, Metadata
from holdfast.watchdog.ledger import Ledger
from holdfast.watchdog.metrics.counts import JobCounts
from holdfast.watchdog.metrics.course import write_course, write_proofs, write_vitals
from holdfast.watchdog.metrics.faults import write_faults
from holdfast.watchdog.metrics.table import WATCHDOG_METRICS
from holdfast.watchdog.metrics.vitals import Spread, Vitals
from holdfast.watchdog.metrics.worth import write_utilization, write_worth
from holdfast.watchdog.state import JobState

RICH = "a/rich"
DETECTOR = "HangDetector"
EVEN = Spread(1.0, 1.0, 1.0, 1.0)
VITALS = Vitals(
    fresh=8,
    loss=Spread(1.9, 2.0, 2.1, 2.1),
    grad_norm=EVEN,
    step_s=EVEN,
    tokens_per_s=1e5,
    heard_age_s=0.5,
    progress_age_s=0.5,
)
Seen = tuple[JobState, Vitals]
Sickness = Callable[[JobState, Vitals, float], Seen]


def round_of(job: str) -> Round:
    """The round that runs: eight ranks of one member."""
    shares = (MemberRanks("n-1", "n-1", 0, 8),)
    return Round(job, 1, shares, Endpoint("10.0.0.1", 7000), Restore(), Entry.RESPAWN, "first round")


def culprit_of(job: str) -> Subject:
    return Subject(job, node="n-culprit", gpu="GPU-c", rank=12)


def _incident(kind: FindingKind, state: IncidentState) -> Sickness:
    def suffer(well: JobState, vitals: Vitals, now: float) -> Seen:
        incident = Incident(
            id="inc-0001",
            job=well.job,
            kind=kind,
            culprit=culprit_of(well.job),
            confidence=Confidence.CERTAIN,
            cause="made up",
            state=state,
            began_at=now - 60.0,
            detected_at=now - 59.0,
            evidence=(),
            timeline=(Moment(now - 59.0, "found"),),
        )
        return msgspec.structs.replace(well, incidents=(*well.incidents, incident)), vitals

    return suffer


def _decided(**fields: object) -> Sickness:
    return lambda well, vitals, now: (msgspec.structs.replace(well, **fields), vitals)


def _seen(**fields: object) -> Sickness:
    return lambda well, vitals, now: (well, msgspec.structs.replace(vitals, **fields))


def _restarted(well: JobState, vitals: Vitals, now: float) -> Seen:
    return msgspec.structs.replace(well, restarts=(now,) * 3), vitals


def _evicted(well: JobState, vitals: Vitals, now: float) -> Seen:
    return msgspec.structs.replace(well, evictions=(now,) * 2), vitals


def _without_a_spare(well: JobState, vitals: Vitals, now: float) -> Seen:
    assert well.policy is not None
    return msgspec.structs.replace(well, policy=msgspec.structs.replace(well.policy, spares=1)), vitals


def _saved_long_ago(well: JobState, vitals: Vitals, now: float) -> Seen:
    return msgspec.structs.replace(well, checkpoints=(Checkpoint(70, "/ckpt", 1, now - 9000.0),)), vitals


def _slowed(well: JobState, vitals: Vitals, now: float) -> Seen:
    """One rank takes twice as long, and all others wait for it."""
    return well, msgspec.structs.replace(vitals, step_s=Spread(2.0, 2.0, 2.0, 2.0), tokens_per_s=5e4)


def _as_ever(well: JobState, vitals: Vitals, now: float) -> Seen:
    return well, vitals


SICKNESSES: Mapping[str, Sickness] = MappingProxyType(
    {
        "HoldfastJobFailed": _decided(phase=JobPhase.FAILED),
        "HoldfastJobNotProgressing": _as_ever,  # its steps stand still
        "HoldfastIncidentNeedsHuman": _incident(FindingKind.XID, IncidentState.PAGED),
        "HoldfastIncidentOpenTooLong": _incident(FindingKind.HANG, IncidentState.OPEN),
        "HoldfastRestartsTooOften": _restarted,
        "HoldfastEvictionBudgetNear": _evicted,
        "HoldfastSparesExhausted": _without_a_spare,
        "HoldfastCheckpointStale": _saved_long_ago,
        "HoldfastLossNotFinite": _seen(nonfinite=8, loss=None),
        "HoldfastLossSpike": _seen(loss=Spread(8.9, 9.0, 9.1, 9.1)),
        "HoldfastTokensFalling": _slowed,
        "HoldfastMfuFalling": _slowed,
        "HoldfastCorruptionFound": _incident(FindingKind.CORRUPTION, IncidentState.OPEN),
        "HoldfastSelfTestFailed": _incident(FindingKind.SELF_TEST, IncidentState.OPEN),
        "HoldfastDetectorFailing": _as_ever,  # its failures grow
    }
)
INCIDENT_LABELS = {"node": "n-culprit", "gpu": "GPU-c", "rank": "12"}
NAMED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "HoldfastIncidentNeedsHuman": INCIDENT_LABELS | {"kind": "Xid"},
        "HoldfastIncidentOpenTooLong": INCIDENT_LABELS | {"kind": "Hang"},
        "HoldfastCorruptionFound": INCIDENT_LABELS,
        "HoldfastSelfTestFailed": {"node": "n-culprit", "gpu": "GPU-c"},
        "HoldfastDetectorFailing": {"detector": DETECTOR},
    }
)
OF_THE_OPERATOR = MappingProxyType(
    {"HoldfastJobDegraded": "Degraded", "HoldfastWatchdogUnreachable": "WatchdogReachable"}
)


class StagedJobs:
    """A job for each sickness, and one that has something of everything; `sick` makes all of them so."""

    def __init__(self) -> None:
        self.sick = False
        self._began_at = time.monotonic()
        self._steps = self._stuck_at = 0
        self._failures = 0
        self._counts = JobCounts()

    def watchdog(self) -> Page:
        """The page of a watchdog that leads."""
        now = time.monotonic()
        self._steps += 1
        page = Page(WATCHDOG_METRICS)
        page.put("holdfast_watchdog_leading", 1)
        page.put("holdfast_watchdog_store_up", 1)
        page.put("holdfast_watchdog_loop_lag_seconds", 0.001)
        page.put("holdfast_watchdog_reports_total", self._steps)
        for job in (RICH, *(f"a/{alert}" for alert in SICKNESSES)):
            self._write(page, job, now)
        page.put("holdfast_watchdog_judge_failures_total", self._failures, "a/HoldfastDetectorFailing", DETECTOR)
        return page

    def fall_sick(self) -> None:
        self.sick = True
        self._stuck_at = self._steps
        self._failures += 1
        self._counts.note(FindingMade(_corruption()), ())

    def recover(self) -> None:
        self.sick = False

    def _write(self, page: Page, job: str, now: float) -> None:
        state, vitals = self._well(job, now), VITALS
        if job == RICH or self.sick:
            sickness = (
                SICKNESSES[job.removeprefix("a/")]
                if job != RICH
                else _incident(FindingKind.XID, IncidentState.OPEN)
            )
            state, vitals = sickness(state, vitals, now)
        write_course(page, state, step_time_s=None, now=now)
        write_vitals(page, job, vitals, (state.high_step,))
        write_proofs(page, job, self._counts if job == RICH else JobCounts())
        write_faults(page, state, self._counts, now=now)
        write_worth(page, state, now=now)
        write_utilization(page, state, vitals.tokens_per_s)

    def _well(self, job: str, now: float) -> JobState:
        stands_still = self.sick and job == "a/HoldfastJobNotProgressing"
        step = self._stuck_at if stands_still else self._steps
        budgets = {"restarts": RestartBudget(count=4, per_s=1e6), "evictions": EvictionBudget(count=2, per_s=1e6)}
        recovered = Incident(
            id="inc-0000",
            job=job,
            kind=FindingKind.PROCESS_EXIT,
            culprit=Subject(job, node="n-1", rank=1),
            confidence=Confidence.CERTAIN,
            cause="signal 9",
            state=IncidentState.RECOVERED,
            began_at=self._began_at,
            detected_at=self._began_at,
            evidence=(),
            timeline=(Moment(self._began_at, "found"),),
            recovered_at=self._began_at + 1.0,
        )
        return JobState(
            job,
            phase=JobPhase.RUNNING,
            policy=Policy(
                job=job,
                nodes_min=1,
                nodes_max=2,
                gpu_hour=GpuHour(2.5, "EUR"),
                flops=ModelFlops(per_token=4e10, gpu_peak_per_s=1e15),
                **budgets,  # type: ignore[arg-type]
            ),
            round=round_of(job),
            desired=round_of(job),
            high_step=step,
            checkpoints=(Checkpoint(step, "/ckpt", 1, now - 5.0),),
            verified_step=step,
            ledger=Ledger(began_at=self._began_at, useful_s=1.0, stepped_at=self._began_at),
            avoided=(NodeOrder("n-culprit", "it broke"),),
            incidents=(recovered,),
        )


def sick_watchdog(*, sick: bool) -> Page:
    """The page of the only watchdog of another installation."""
    page = Page(WATCHDOG_METRICS)
    page.put("holdfast_watchdog_leading", int(not sick))
    page.put("holdfast_watchdog_store_up", int(not sick))
    page.put("holdfast_watchdog_loop_lag_seconds", 2.0 if sick else 0.001)
    return page


class StagedOperator:
    """The operator's own metrics; its jobs are those that alerts by condition are about."""

    def __init__(self) -> None:
        self.sick = False
        self.metrics = Metrics()
        self.metrics.follow(lambda: 0.0, lambda: float(not self.sick), lambda: 1.0)
        self.metrics.add(JobConditions(self._jobs))

    def _jobs(self) -> list[Job]:
        return [
            Job(
                Metadata(alert, namespace="a"),
                status=_status(condition, (alert == "HoldfastJobDegraded") == self.sick),
            )
            for alert, condition in OF_THE_OPERATOR.items()
        ]


def _status(condition: str, holds: bool) -> msgspec.Raw:
    told = {
        "type": condition,
        "status": str(holds),
        "reason": "MadeUp",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    return msgspec.Raw(msgspec.json.encode({"conditions": [told]}))


def _corruption() -> Finding:
    return Finding(
        kind=FindingKind.CORRUPTION,
        subject=culprit_of(RICH),
        cause="fingerprint vote",
        evidence=(),
        confidence=Confidence.CERTAIN,
        began_at=0.0,
    )
