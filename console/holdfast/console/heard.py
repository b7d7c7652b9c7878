"""One job as the feed tells of it: its status, its incidents, where it is, and what each rank does."""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from holdfast.api.feed import (
    PROCESS_STATES,
    UNKNOWN_STEP,
    GpusTold,
    HeatTold,
    IncidentTold,
    JobTold,
    NodeRemark,
    NodesTold,
    PlacesTold,
    RanksTold,
    StepsTold,
    Waited,
)
from holdfast.api.finding import Confidence
from holdfast.api.incident import Incident, IncidentState
from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import ProcessState
from holdfast.console.series import Point, Series

Floats = NDArray[np.float32]
Heard = JobTold | IncidentTold | PlacesTold | RanksTold | StepsTold | NodesTold | GpusTold | HeatTold

INCIDENTS_KEPT: Final = 1000
INCIDENTS_TOLD: Final = 64
"""How many of the newest changes a reader that falls behind is still told one by one."""
PHASES: Final = (*(phase.name.lower() for phase in Phase), "unknown")
"""What a rank's phase is called, by its number; the last one is of a rank of which nothing is known."""

STEP_UNKNOWN: Final = 2**32 - 1

# What a rank's health is, by its number in the columns.
UNKNOWN, FINE, SUSPECT, FAULTY = range(4)

_BY_PROCESS: Final = np.array(
    [
        {ProcessState.RUNNING: FINE, ProcessState.GONE: FAULTY, ProcessState.UNKNOWN: UNKNOWN}.get(each, SUSPECT)
        for each in PROCESS_STATES
    ],
    dtype=np.uint8,
)


@dataclass(frozen=True, slots=True)
class Columns:
    """Every rank of the world, by rank: index of its node, newest step (STEP_UNKNOWN), number in PHASES, health,
    and of its newest step the seconds and the loss (NaN: not known).
    """

    node: NDArray[np.uint32]
    step: NDArray[np.uint32]
    phase: NDArray[np.uint8]
    health: NDArray[np.uint8]
    step_s: Floats
    loss: Floats


class JobHeard:
    """`versions` count what was told, by kind (job, incidents, ranks, nodes, points): who keeps the count he has
    seen knows what is news.
    """

    def __init__(self, job: str) -> None:
        self.job = job
        self.is_gone = False
        self.told: JobTold | None = None
        self.incidents: dict[str, Incident] = {}  # by id, those told first first
        self.places: PlacesTold | None = None
        self.remarks: dict[int, NodeRemark] = {}  # by the node's index
        self.gpus: GpusTold | None = None
        self.series = Series()
        self.versions = {"job": 0, "incidents": 0, "ranks": 0, "nodes": 0, "points": 0}
        self.newest_incidents: list[tuple[int, Incident]] = []  # with the version that brought it
        self._ranks: RanksTold | None = None
        self._steps: StepsTold | None = None
        self._heat: HeatTold | None = None
        self._waited: Waited | None = None
        self._wait_share = math.nan

    def hear(self, told: Heard) -> None:
        """Take in what the feed says. Columns of another layout than the newest are passed over."""
        match told:
            case JobTold():
                self.told = told
                self.versions["job"] += 1
            case IncidentTold():
                self._note(told.incident)
            case PlacesTold():
                self._place(told)
                self.versions["nodes"] += 1
                self.versions["ranks"] += 1
            case RanksTold() if self._fits(told.layout):
                self._ranks = told
                self.versions["ranks"] += 1
            case StepsTold() if self._fits(told.layout):
                self._steps = told
                self.versions["ranks"] += 1
                self._add_point(told)
            case NodesTold() if self._fits(told.layout):
                self.remarks = {each.node: each for each in told.remarks}
                self.versions["nodes"] += 1
                self.versions["ranks"] += 1
            case GpusTold() if self._fits(told.layout):
                self.gpus = told
                self.versions["nodes"] += 1
            case HeatTold() if self._fits(told.layout):
                self._heat = told
                self.versions["nodes"] += 1

    @property
    def round(self) -> int | None:
        """The round that runs."""
        return self.places.round if self.places is not None else None

    @property
    def world(self) -> int:
        return self.places.world if self.places is not None else 0

    def columns(self) -> Columns:
        """What is known of each rank now."""
        places, world = self.places, self.world
        columns = Columns(
            np.zeros(world, np.uint32),
            np.full(world, STEP_UNKNOWN, np.uint32),
            np.full(world, len(PHASES) - 1, np.uint8),
            np.zeros(world, np.uint8),
            np.full(world, np.nan, np.float32),
            np.full(world, np.nan, np.float32),
        )
        if places is None:
            return columns
        for share in places.ranks:
            columns.node[share.first : share.first + share.count] = share.node
        order = _column(places.order, np.uint32)
        if self._ranks is not None and self._ranks.layout == places.layout and places.round is not None:
            columns.phase[order] = _column(self._ranks.phase, np.uint8)
            columns.health[order] = _BY_PROCESS[_column(self._ranks.process, np.uint8)]
        if self._steps is not None and self._steps.layout == places.layout:
            told = self._steps.columns
            columns.step[order] = _column(told.step, np.int32)  # UNKNOWN_STEP becomes STEP_UNKNOWN
            columns.step_s[order] = _column(told.step_s, np.float32)
            columns.loss[order] = _column(told.loss, np.float32)
        self._judge(columns)
        return columns

    def heat(self) -> tuple[bytes, Floats] | None:
        """Each GPU's number in GPU_HEALTHS and degrees Celsius (NaN), in the order of `gpus`; None: not told."""
        if self.gpus is None or self._heat is None or self._heat.layout != self.gpus.layout:
            return None
        if len(self._heat.health) != sum(len(each) for each in self.gpus.uuids):
            return None  # of the GPUs of a moment ago: theirs comes with the next message
        return self._heat.health, _column(self._heat.temperature_c, np.float32)

    def open_incidents(self) -> list[Incident]:
        return [each for each in self.incidents.values() if each.state is IncidentState.OPEN]

    def _fits(self, layout: int) -> bool:
        return self.places is not None and layout == self.places.layout

    def _place(self, told: PlacesTold) -> None:
        """What was told of nodes by their index holds for no others."""
        if self.places is not None and told.nodes != self.places.nodes:
            self.remarks, self.gpus, self._heat = {}, None, None
        self.places = told

    def _note(self, incident: Incident) -> None:
        self.incidents.pop(incident.id, None)
        self.incidents[incident.id] = incident
        self.versions["incidents"] += 1
        self.versions["ranks"] += 1
        self.newest_incidents = [*self.newest_incidents[-INCIDENTS_TOLD:], (self.versions["incidents"], incident)]
        while len(self.incidents) > INCIDENTS_KEPT:
            del self.incidents[next(iter(self.incidents))]

    def _judge(self, columns: Columns) -> None:
        """Set the health of those of whom something is known beside what their processes do."""
        health, places = columns.health, self.places
        assert places is not None
        marks: list[tuple[int, int]] = []  # by index of the node
        for index, remark in self.remarks.items():
            if remark.silent:
                marks.append((index, UNKNOWN))
            elif remark.conditions or remark.avoided or remark.tested:
                marks.append((index, SUSPECT))
        indices = {name: index for index, name in enumerate(places.nodes)}
        ranks = []
        for each in self.open_incidents():
            who = each.culprit
            verdict = SUSPECT if each.confidence is Confidence.UNKNOWN else FAULTY
            if who.rank is not None and who.rank < len(health):
                ranks.append((who.rank, verdict))
            elif who.node in indices:
                marks.append((indices[who.node], verdict))
        for index, verdict in marks:
            health[columns.node == index] = verdict
        for rank, verdict in ranks:
            health[rank] = verdict

    def _add_point(self, told: StepsTold) -> None:
        """One more point of the series, made of the newest steps of all ranks."""
        columns = told.columns
        step_s, loss = _column(columns.step_s, np.float32), _column(columns.loss, np.float32)
        tokens, steps = _column(columns.tokens, np.float32), _column(columns.step, np.int32)
        loss, norm = _finite(loss), _finite(_column(columns.grad_norm, np.float32))
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = _finite(tokens / step_s)
        step_s = _finite(step_s)
        tokens_s = float(rates.sum(dtype=np.float64)) if rates.size else math.nan
        flops = self.told.flops if self.told is not None else None
        peak = self.world * flops.gpu_peak_per_s if flops is not None else 0.0
        least = int(steps.min()) if steps.size == self.world and steps.size else UNKNOWN_STEP
        self.series.add(
            Point(
                at=told.at,
                step=math.nan if least == UNKNOWN_STEP else float(least),
                tokens_s=tokens_s,
                mfu=tokens_s * flops.per_token / peak if flops is not None and peak else math.nan,
                loss_min=float(loss.min()) if loss.size else math.nan,
                loss_median=float(np.median(loss)) if loss.size else math.nan,
                loss_max=float(loss.max()) if loss.size else math.nan,
                grad_norm=float(np.median(norm)) if norm.size else math.nan,
                step_s=float(step_s.max()) if step_s.size else math.nan,
                wait_share=self._waiting(told.waited),
            )
        )
        self.versions["points"] += 1

    def _waiting(self, waited: Waited | None) -> float:
        """What of their time the ranks waited since the last point; NaN where nothing tells of it."""
        before, self._waited = self._waited, waited
        if waited is not None and waited == before:  # told again, as after a reconnect
            return self._wait_share
        self._wait_share = math.nan if waited is None else _share(before, waited)
        return self._wait_share


def _share(before: Waited | None, waited: Waited) -> float:
    if before is None or waited.wall_s <= before.wall_s:  # of another round
        before = Waited(0.0, 0.0)
    wall_s = waited.wall_s - before.wall_s
    if wall_s <= 0.0:
        return math.nan
    return min(1.0, max(0.0, (waited.waited_s - before.waited_s) / wall_s))


def _column(content: bytes, kind: type[Any]) -> NDArray[Any]:
    return np.frombuffer(content, dtype=np.dtype(kind).newbyteorder("<"))


def _finite(values: Floats) -> Floats:
    return values[np.isfinite(values)]
