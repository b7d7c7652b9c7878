"""A run that really happened, from its journal: what failed when, what became of it, and how long things took.

Lived through again it shows two things: under the policy that the run had, how well the simulator reproduces it;
under another, what would have been different. Faults are given as they were seen: what came again is given again,
and hits nobody where the machine has no ranks any more.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Final

import msgspec

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.event import (
    CheckpointRecorded,
    InterventionRequested,
    MemberJoined,
    NodeDeparting,
    RestoreReported,
    RoundProgressed,
)
from holdfast.api.finding import FindingKind
from holdfast.api.incident import Incident
from holdfast.api.ledger import Row
from holdfast.api.policy import Policy
from holdfast.api.round import Tier
from holdfast.simulator.failuretable import OF_FINDINGS, OF_NOBODY
from holdfast.simulator.fault import Fault, Happening, Spread, Symptom
from holdfast.simulator.outcome import LostTo
from holdfast.simulator.scenario import DAY_S, Fleet, Scenario, Times
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.step import IncidentClosed, IncidentOpened, IncidentUpdated, Notify
from holdfast.watchdog.journal.replay import Replayed

PHASES: Final[Mapping[Row, LostTo]] = {
    Row.DETECTING: LostTo.DETECT,
    Row.DECIDING: LostTo.DECIDE,
    Row.FORMING: LostTo.RESTART,
    Row.LOADING: LostTo.RESTORE,
    Row.COMPUTED_AGAIN: LostTo.REPLAY,
    Row.WAITING_FOR_NODES: LostTo.WAIT,
    Row.SELF_TEST: LostTo.DECIDE,
    Row.SLOW: LostTo.SLOW,
    Row.CHECKPOINT_STALL: LostTo.SAVE,
}
"""What the ledger's rows are called here; the rest of the job's wall time is training that was kept."""
BLIP: Final = Spread(1.0)
"""How long a link was down whose collectives failed, and nothing else was seen of it."""
OF_THE_PLACE: Final = (
    "form_grace_s",
    "save_grace_s",
    "drain_grace_s",
    "cordon_on",
    "cluster_xid_actions",
    "observe",
)
"""What of a policy is told by where the run was, a cluster or one machine, and by no job file."""
AFTER_NOTICE_S: Final = 900.0
"""A node that is lost so soon after a notice went as it was told."""
STEP_S: Final = 10.0


class Untrained(InvalidInput):
    """There is nothing to live through again."""


class Really(msgspec.Struct, frozen=True):
    """What became of the run, in seconds of the whole job but for counts. `lost_s` is by phase;
    `trained_gpu_hours` are of steps that were kept.
    """

    elapsed_s: float
    trained_s: float
    lost_s: dict[str, float]
    trained_gpu_hours: float
    evictions: int
    pages: int
    rounds: int
    incidents: int


class Recorded(msgspec.Struct, frozen=True):
    """`policy` is the last that the run had, `nodes` how many had joined in all. `left_out` counts the incidents,
    by kind, and interventions that are not lived through again. `snapshots`: a round went on from memory, or
    none had to. `script_saves`: after so many steps the script saved by itself; 0: it did not.
    """

    job: str
    policy: Policy
    nodes: int
    really: Really
    happenings: tuple[Happening, ...]
    times: Times
    step_s: float
    left_out: dict[str, int]
    snapshots: bool = True
    script_saves: int = 0

    def scenario(self, policy: Policy) -> Scenario:
        """The same faults under a policy, of whose size and spares it is, with as many machines as the run had.

        The script is the run's, and keeps snapshots in memory only if it did. Nobody suspends it or queues it.
        What a job file does not say is as the run had it.
        """
        memory = policy.memory if self.snapshots else None
        policy = msgspec.structs.replace(
            policy,
            memory=memory,
            suspend=False,
            admitted=None,
            **{name: getattr(self.policy, name) for name in OF_THE_PLACE},
        )
        fleet = Fleet(
            nodes=policy.nodes_max,
            gpus_per_node=policy.processes_per_node,
            spares=policy.spares,
            free=max(0, self.nodes - policy.nodes_max - policy.spares),
            gpu_hour=policy.gpu_hour.amount if policy.gpu_hour is not None else None,
        )
        days = self.really.elapsed_s / DAY_S
        return Scenario(
            policy,
            fleet,
            (),
            days,
            step_s=self.step_s,
            times=self.times,
            happenings=self.happenings,
            script_saves=self.script_saves,
        )


class _Seen:
    """What a journal tells, line by line."""

    def __init__(self, first: Replayed) -> None:
        """`first` is where it begins: the first round trains, or the journal was compacted before it."""
        self.begun, self.begun_at = first.state, first.line.at
        self.state, self.at = first.state, first.line.at
        self.incidents: dict[str, Incident] = {}
        self.held: dict[str, float] = {}  # how long the job had been suspended when an incident opened
        self.joined: list[tuple[float, str]] = []
        self.departing: list[tuple[float, float, str]] = []
        self.stalls: list[tuple[float | None, float | None]] = []
        self.own_saves: set[int] = set()  # steps whose checkpoint nobody had asked for
        self.paces: list[float] = []
        self.pages = 0
        self.asked = 0
        self.tiers: set[Tier] = set()
        self.trained: set[int] = set()  # rounds that made a step
        self._progress: RoundProgressed | None = None

    def add(self, step: Replayed) -> None:
        """One more line."""
        self.state, self.at = step.state, step.line.at
        for effect in step.effects:
            match effect:
                case IncidentOpened(incident) | IncidentUpdated(incident) | IncidentClosed(incident):
                    self.held.setdefault(incident.id, step.state.ledger.held_s)
                    self.incidents[incident.id] = incident
                case Notify():
                    self.pages += 1
        match step.line.event:
            case MemberJoined(node=node):
                self.joined.append((self.at, node))
            case NodeDeparting(node=node):
                self.departing.append((self.at, step.state.ledger.held_s, node))
            case CheckpointRecorded(step=saved, wanted=wanted, stall_s=stall, took_s=took):
                self.stalls.append((stall, took))
                if wanted is None:
                    self.own_saves.add(saved)
            case RestoreReported(tier=tier):
                self.tiers.add(tier)
            case InterventionRequested():
                self.asked += 1
            case RoundProgressed() as progress:
                self._pace(progress)

    def _pace(self, progress: RoundProgressed) -> None:
        self.trained.add(progress.round)
        before, self._progress = self._progress, progress
        if before is None or before.round != progress.round or progress.step <= before.step:
            return
        if before.completed_at is not None and progress.completed_at is not None:
            took_s = progress.completed_at - before.completed_at
            if took_s > 0.0:  # not one of those that a busy machine told of all at once
                self.paces.append(took_s / (progress.step - before.step))


def recorded(steps: Iterable[Replayed]) -> Recorded:
    """From every line of a journal, as the brain took it. Of jobs that had the name one after the other it is the
    last. Raises Untrained where that never trained.
    """
    seen: _Seen | None = None
    for each in steps:
        if seen is not None and each.state.incarnation != seen.state.incarnation:
            seen = None  # another job has taken the name
        if seen is None and each.state.progressed:
            seen = _Seen(each)
        if seen is not None:
            seen.add(each)
    if seen is None:
        raise Untrained(Problem("--journal", "", "the run has trained no step; choose another"))
    state, began = seen.state, seen.begun_at
    assert state.policy is not None  # it has trained
    there = [each.node for each in seen.begun.members]
    names = list(dict.fromkeys([*there, *(node for _, node in seen.joined)]))
    really = _really(seen, state)
    if really.elapsed_s <= 0.0 or really.trained_s <= 0.0:
        raise Untrained(
            Problem("--journal", state.job, "the run has trained no step that was kept; choose another")
        )
    kept, left_out = _happenings(seen, began, names)
    if seen.asked:
        left_out["Intervention"] = seen.asked
    return Recorded(
        job=state.job,
        policy=state.policy,
        nodes=len(names),
        really=really,
        happenings=kept,
        times=_times(seen, really),
        step_s=median(seen.paces) if seen.paces else STEP_S,
        left_out=left_out,
        snapshots=Tier.MEMORY in seen.tiers or len(seen.trained) < 2,
        script_saves=_script_saves(seen, state.policy),
    )


def _script_saves(seen: _Seen, policy: Policy) -> int:
    """After how many steps the script saved by itself, as most of its checkpoints were apart; 0 where fewer than
    two tell of it, or the policy names the steps.
    """
    is_policys = policy.interval is not None and policy.interval.steps is not None
    apart = [after - before for before, after in pairwise(sorted(seen.own_saves))]
    return round(median(apart)) if apart and not is_policys else 0


def _really(seen: _Seen, state: JobState) -> Really:
    """From the ledger at the end, without what it had where the journal begins, and what nobody has judged yet."""
    before, after = seen.begun.ledger.at(seen.begun_at), state.ledger.at(seen.at)
    spent = {row: after.of(row) - before.of(row) for row in Row}
    lost: dict[str, float] = {}
    for row, phase in PHASES.items():
        if spent[row].wall_us:
            lost[phase.value] = lost.get(phase.value, 0.0) + spent[row].wall_us / 1e6
    kept = spent[Row.PRODUCTIVE] + spent[Row.DATA_WAIT]
    rounds = [each.round.number if each.round is not None else 0 for each in (seen.begun, state)]
    wall_us = sum(each.wall_us for row, each in spent.items() if row not in (Row.SUSPENDED, Row.UNJUDGED))
    return Really(
        elapsed_s=wall_us / 1e6,
        trained_s=kept.wall_us / 1e6,
        lost_s=lost,
        trained_gpu_hours=kept.gpu_hours,
        evictions=state.eviction_count - seen.begun.eviction_count,
        pages=seen.pages,
        rounds=rounds[1] - rounds[0],
        incidents=len(seen.incidents),
    )


def _happenings(seen: _Seen, began: float, names: Sequence[str]) -> tuple[tuple[Happening, ...], dict[str, int]]:
    """The faults in order, and what is none, by kind."""
    numbers = {name: place for place, name in enumerate(names)}
    left_out: Counter[str] = Counter()
    told: list[Happening] = []
    for at, held, gone in seen.departing:
        fault = Fault("preemption", Symptom.PREEMPTION, repair=_repair(seen, gone, at))
        told.append(Happening(max(0.0, at - began - held), fault, numbers.get(gone)))
    for incident in seen.incidents.values():
        node = incident.culprit.node
        if incident.kind not in OF_FINDINGS:
            left_out[incident.kind.value] += 1
        elif incident.kind is not FindingKind.MEMBER_LOST or not _was_announced(seen, node, incident.began_at):
            at = max(0.0, incident.began_at - began - seen.held[incident.id])
            told.append(Happening(at, _fault(seen, incident), numbers.get(node or "")))
    return tuple(sorted(told, key=lambda each: each.at_s)), dict(left_out)


def _was_announced(seen: _Seen, node: str | None, at: float) -> bool:
    return any(name == node and 0.0 <= at - told <= AFTER_NOTICE_S for told, _, name in seen.departing)


def _fault(seen: _Seen, incident: Incident) -> Fault:
    """An incident as what brought it about."""
    symptom = OF_FINDINGS[incident.kind]
    is_nobodys = incident.kind in OF_NOBODY or incident.innocent or incident.culprit.node is None
    lasts = BLIP if symptom is Symptom.LINK_FLAP else None
    if symptom is Symptom.SLOW:
        until = incident.recovered_at if incident.recovered_at is not None else seen.at
        lasts = Spread(max(1.0, until - incident.began_at))
    code = incident.cause.removeprefix("xid ")
    return Fault(
        name=incident.kind.value,
        symptom=symptom,
        infrastructure=0.0 if is_nobodys else 1.0,
        repair=_repair(seen, incident.culprit.node, incident.began_at),
        lasts=lasts,
        code=int(code) if symptom is Symptom.XID and code.isdigit() else None,
    )


def _repair(seen: _Seen, node: str | None, at: float) -> Spread:
    """Until the node joined again; of one that did not, until beyond the run's end."""
    back = next((joined for joined, name in seen.joined if name == node and joined > at), None)
    return Spread(max(1.0, (back if back is not None else seen.at + DAY_S) - at))


def _times(seen: _Seen, really: Really) -> Times:
    """What the watchdog does not decide, as it was in the run where its ledger and checkpoints tell: each round
    after the first started and loaded as long as all of them did in the mean, from wherever they did. What none of
    them did, to load from storage, takes as long as the last save there, where one is told of.
    """
    known = Times()
    stalls = [stall for stall, _ in seen.stalls if stall is not None]
    tooks = [took for _, took in seen.stalls if took is not None]
    after = len(seen.trained) - 1  # the first was there at the begin
    start = really.lost_s.get(LostTo.RESTART.value, 0.0) / after if after else known.start_s
    load = really.lost_s.get(LostTo.RESTORE.value, 0.0) / after if after else known.load_s
    if seen.state.policy is not None and seen.state.policy.replica_nodes:
        # Of the two rounds that a fault takes all copy in the one in which a group comes back.
        known = msgspec.structs.replace(known, regroup_s=start, regroup_per_1000_ranks_s=0.0, copy_s=2.0 * load)
    return msgspec.structs.replace(
        known,
        stop_s=0.0,  # what it took is in the start of the next round
        reenter_s=start,
        start_s=start,
        start_cold_s=max(start, known.start_cold_s),
        join_s=0.0,
        join_per_doubling_s=0.0,
        load_s=load if Tier.CHECKPOINT in seen.tiers or not after else max([load, *tooks[-1:]]),
        load_memory_s=load if Tier.MEMORY in seen.tiers else min(load, known.load_memory_s),
        first_step_s=0.0,
        save_stall_s=fmean(stalls) if stalls else known.save_stall_s,
        save_took_s=fmean(tooks) if tooks else known.save_took_s,
    )
