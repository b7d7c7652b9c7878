"""Makes records of what the watchdog tells of one job: rows for steps, notes for incidents, and its end. Pure.

Of the ranks' own figures the least, the median and the greatest are told, at the newest step that all of them have
completed. What a script logs is told as it was logged. A step is whole once a later one is complete: until then
its script may log of it, an evaluation of some minutes at its end. What is said of the newest moment waits for
`GRACE_S` more, until ranks that report later were heard as well; then a `Mark` says so.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from holdfast.api.bulletin import Bulletin, GpuFigures, Spread
from holdfast.api.feed import UNKNOWN_STEP, JobTold, PlacesTold, StepColumns, StepsTold
from holdfast.api.incident import Incident, IncidentState
from holdfast.api.policy import ModelFlops
from holdfast.api.scalars import ScalarsLogged
from holdfast.api.status import JobPhase
from holdfast.console.trackers.records import Ended, Mark, Note, Row

GRACE_S: Final = 3.0
"""Ranks report once a second, and scripts' values are sent once a second; this leaves both a second to arrive."""
INCIDENTS_KEPT: Final = 1000
OVER: Final = (JobPhase.SUCCEEDED, JobPhase.FAILED)


class Memory(msgspec.Struct):
    """What a composer goes on with after a restart; in the `Mark` behind what it has told.

    `after` and `life` name the newest message of scalars. `told` are incidents by id, and whether they were over.
    `ended_at` is the end of the job that was told. `begun`: somebody published this job before.
    """

    round: int = -1
    step: int = -1
    after: int = 0
    life: str = ""
    told: dict[str, bool] = {}
    ended_at: float | None = None
    begun: bool = False


@dataclass(slots=True)
class _Places:
    layout: int = -1
    round: int | None = None
    world: int = 0
    order: memoryview = field(default_factory=lambda: memoryview(b"").cast("I"))


class Composer:
    """One job's. `now` is seconds on any clock that only grows; times in records are the watchdog's."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._bulletin: Bulletin | None = None
        self._places = _Places()
        self._flops: ModelFlops | None = None
        self._heard_round: int | None = None  # `_heard` and `_finals` are of this round
        self._heard: deque[tuple[float, int]] = deque()  # when a step was first known to be whole; both grow
        self._steps_known = False  # ranks say which steps they complete, in that round
        self._finals: deque[tuple[float, int]] = deque()
        self._known_heard: int | None = None
        self._known_final: int | None = None
        self._over_since: float | None = None
        self._end: Ended | None = None

    def placed(self, told: PlacesTold) -> None:
        """Where ranks are, and in which order columns tell of them."""
        self._places = _Places(told.layout, told.round, told.world, memoryview(told.order).cast("I"))

    def stepped(self, told: StepsTold, now: float) -> list[Row]:
        """The newest step that is complete on all ranks, once."""
        places, bulletin, memory = self._places, self._bulletin, self.memory
        if told.layout != places.layout or places.round is None or bulletin is None:
            return []
        if bulletin.round != places.round or len(places.order) != places.world:
            return []
        steps = memoryview(told.columns.step).cast("i")
        step = min(steps, default=UNKNOWN_STEP)
        is_known = places.round == memory.round and step <= memory.step
        if step == UNKNOWN_STEP or is_known:
            return []
        memory.round, memory.step = places.round, step
        values = self._loop(told.columns, [place for place, each in enumerate(steps) if each == step])
        values |= _gpu_values(bulletin.gpus)
        self._hear(places.round, step, now, completed=True)
        return [Row(step, told.at, values, places.round, bulletin.since)]

    def _loop(self, told: StepColumns, there: list[int]) -> dict[str, float]:
        """Of the ranks whose columns are `there`: those that have not gone on to the next step yet."""
        columns = {
            name: memoryview(column).cast("f")
            for name, column in (("loss", told.loss), ("grad_norm", told.grad_norm), ("step_s", told.step_s))
        }
        values: dict[str, float] = {}
        for name, column in columns.items():
            known = [column[place] for place in there if not math.isnan(column[place])]
            values |= _spread(name, known)
        tokens = [each for each in memoryview(told.tokens).cast("f") if not math.isnan(each)]
        # A step takes as long as its slowest rank, for which all others wait.
        if tokens and (step_s := values.get("step_s/max")):
            values["tokens_s"] = sum(tokens) / step_s
            if (flops := self._flops) is not None:
                values["mfu"] = values["tokens_s"] * flops.per_token / (self._places.world * flops.gpu_peak_per_s)
        policy = self._bulletin.reporting if self._bulletin else None
        if policy is not None and policy.ranks > 1:
            ranks = {self._places.order[place]: place for place in there}
            for rank in range(policy.ranks):
                if (place := ranks.get(rank)) is not None:
                    own = {name: column[place] for name, column in columns.items()}
                    values |= {f"rank-{rank}/{name}": each for name, each in own.items() if not math.isnan(each)}
        return values

    def announced(self, bulletin: Bulletin, at: float, now: float) -> list[Row | Note]:
        """What scripts logged, and which steps are final. `at` is the watchdog's time."""
        self._bulletin, memory = bulletin, self.memory
        if bulletin.life != memory.life:
            memory.life, memory.after = bulletin.life, 0
        records: list[Row | Note] = []
        missed = bulletin.lost
        for kept in bulletin.scalars:
            if kept.number > memory.after:
                memory.after = kept.number
                missed += kept.logged.left_out
                records += self._logged(kept.logged, at, now)
        if missed:
            says = f"{missed} messages or values that the script logged are missing: too many, or too long ago"
            records.append(Note(f"left-out-{at:.0f}", "lost", at, self._step, "values are missing", says))
        if bulletin.final is not None and (not self._finals or bulletin.final > self._finals[-1][1]):
            self._finals.append((now, bulletin.final))
        if bulletin.final is None or (self._finals and bulletin.final < self._finals[-1][1]):
            self._finals.clear()  # the job goes back
        return records

    def _logged(self, logged: ScalarsLogged, at: float, now: float) -> Iterable[Row]:
        prefix = f"rank-{logged.rank}/" if logged.rank else ""
        rows: dict[int, dict[str, float]] = {}
        for name, points in logged.series.items():
            for step, value in points:
                rows.setdefault(step, {})[prefix + name] = value
        for step in sorted(rows):
            self._hear(logged.round, step, now, completed=False)
            yield Row(step, at, rows[step], logged.round, logged.since)

    def described(self, told: JobTold, now: float) -> None:
        """The job's phase, and what its figures are made of."""
        self._flops, status = told.flops, told.status
        self.memory.begun = True
        if status.phase not in OVER or status.ended_at is None or status.ended_at == self.memory.ended_at:
            self._over_since = self._end = None
            return
        if self._end is None:
            self._over_since = now
            self._end = Ended(status.ended_at, status.phase is JobPhase.SUCCEEDED, status.reason)

    def happened(self, incident: Incident) -> list[Note]:
        """An incident, when it begins and when it is over; what changes in between is told with its end."""
        told, is_over = self.memory.told, incident.state is not IncidentState.OPEN
        known = told.get(incident.id)
        if known is not None and (known or not is_over):
            return []
        events = ["opened"] if known is None else []
        events += ["closed"] if is_over else []
        told[incident.id] = is_over
        while len(told) > INCIDENTS_KEPT:
            del told[next(iter(told))]
        is_old = is_over and not self.memory.begun
        return [_note(incident, event, step=self._step, is_old=is_old) for event in events]

    def mark(self, now: float) -> tuple[list[Ended], Mark]:
        """What can be said now for all of it: behind everything else that is told at once."""
        self._known_heard = _due(self._heard, now - GRACE_S, self._known_heard)
        self._known_final = _due(self._finals, now - GRACE_S, self._known_final)
        ended: list[Ended] = []
        if self._end is not None and self._over_since is not None and now >= self._over_since + GRACE_S:
            ended, self.memory.ended_at = [self._end], self._end.at
            self._end = self._over_since = None
        heard, final = self._known_heard, self._known_final
        # The step that a checkpoint holds is final, but no more whole than others.
        final = None if heard is None or final is None else min(heard, final)
        return ended, Mark(heard, final, msgspec.msgpack.encode(self.memory))

    @property
    def has_ended(self) -> bool:
        """Whether the newest end of the job was told."""
        return self.memory.ended_at is not None and self._end is None

    @property
    def _step(self) -> int | None:
        return self.memory.step if self.memory.step >= 0 else None

    def _hear(self, round_: int, step: int, now: float, *, completed: bool) -> None:
        """A step makes those before it whole: one that all ranks completed. A script may log of any step it likes,
        so that what it logs counts only while no rank says which steps it completes.
        """
        is_newer = self._heard_round is None or round_ > self._heard_round
        if is_newer or (completed and round_ == self._heard_round and not self._steps_known):
            self._heard_round, self._steps_known, self._known_heard = round_, completed, None
            self._heard.clear()
        if is_newer:
            self._known_final = None
            self._finals.clear()
        if round_ != self._heard_round or self._steps_known is not completed:
            return
        if not self._heard or step - 1 > self._heard[-1][1]:
            self._heard.append((now, step - 1))


def _due(waiting: deque[tuple[float, int]], before: float, known: int | None) -> int | None:
    while waiting and waiting[0][0] <= before:
        known = waiting.popleft()[1]
    return known


def _spread(name: str, values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        f"{name}/min": min(values),
        f"{name}/median": statistics.median(values),
        f"{name}/max": max(values),
    }


def _gpu_values(gpus: GpuFigures) -> dict[str, float]:
    found: Mapping[str, Spread | None] = {
        "gpu/temperature_c": gpus.temperature_c,
        "gpu/power_w": gpus.power_w,
        "gpu/utilization": gpus.utilization_ratio,
    }
    values: dict[str, float] = {}
    for name, spread in found.items():
        if spread is not None:
            values |= {
                f"{name}/min": spread.least,
                f"{name}/median": spread.median,
                f"{name}/max": spread.most,
            }
    return values


def _note(incident: Incident, event: str, *, step: int | None, is_old: bool) -> Note:
    is_over = event == "closed"
    at = incident.detected_at
    done = "; ".join(f"{each.rung.name.lower().replace('_', ' ')}: {each.does}" for each in incident.actions)
    title = f"{incident.id}: {incident.kind} of {incident.blamed}"
    text = incident.cause
    if is_over:
        at = incident.recovered_at or incident.detected_at
        lost = "" if incident.lost_steps is None else f", {incident.lost_steps} steps lost"
        took = incident.time_to_recover_s
        within = "" if took is None else f" within {took:.1f} s"
        text = f"{incident.state}{within}{lost}. {incident.cause}. {done}"
    return Note(incident.id, event, at, step, title, text, msgspec.json.encode(incident), is_old)
