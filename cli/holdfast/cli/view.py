"""What people are shown of a job, its ranks, nodes and incidents: pure functions from what is known to text."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.api.condition import ConditionState
from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import CAUSE_WITHIN_S, Incident, IncidentState, Rung
from holdfast.api.status import Bill, Causes, Hearing, NodeStatus, RankStatus
from holdfast.api.telemetry import GpuHealth
from holdfast.cli.output import UNKNOWN, ago, number, pairs, ratio, seconds, table
from holdfast.cli.seen import SeenStatus, Source

SAID_BY = {
    Source.WATCHDOG: "the watchdog",
    Source.RECORD: "the TrainingJob's status",
    Source.STORE: "the state directory of the run, which is over",
}
# Reports come once a second; a job that makes no step for so long, and for so many of its steps, stands still.
QUIET_S_MIN = 10.0
STEPS_MISSED = 5.0
# What a rank checks may fail and is given up then, which only its log says: nothing is proved from there on.
UNPROVED_STEPS = 1000
DAY_S = 86400.0


def status_text(status: SeenStatus) -> str:
    """One line per fact."""
    return pairs(_facts(status))


def status_wide_text(status: SeenStatus) -> str:
    """The same, and what fewer people ask for."""
    saved = status.last_checkpoint
    # The record keeps no cadence.
    cadence = UNKNOWN if status.source is Source.RECORD else "when the script says"
    return pairs(
        [
            *_facts(status),
            ("ETTR", ratio(status.ettr)),
            *bill_facts(status.bill),
            *cause_facts(status.causes),
            ("checkpoint at", saved.uri if saved else _no_checkpoint(status)),
            ("checkpoints", status.cadence.says if status.cadence else cadence),
            ("said by", SAID_BY[status.source]),
        ]
    )


def bill_facts(bill: Bill | None) -> list[tuple[str, str]]:
    """What the job has cost, one line; nothing without a price."""
    if bill is None:
        return []
    budget = f" of {bill.budget:,.0f}" if bill.budget is not None else ""
    return [("cost", f"{bill.amount:,.2f}{budget} {bill.currency}, {bill.gpu_hours:,.2f} GPU-hours")]


def cause_facts(causes: Causes | None) -> list[tuple[str, str]]:
    """How soon the causes of incidents were known, one line; nothing without an incident."""
    if causes is None:
        return []
    whole = causes.known + causes.unknown
    told = f"known of {causes.known} of {whole} incidents, of {causes.within} within {seconds(CAUSE_WITHIN_S)}"
    return [("causes", told if causes.median_s is None else f"{told} (median {seconds(causes.median_s)})")]


def _facts(status: SeenStatus) -> list[tuple[str, str]]:
    phase, members, avoided = status.phase or UNKNOWN, status.members, status.avoided_nodes
    facts = [("job", status.job), ("phase", f"{phase} ({status.reason})" if status.reason else phase)]
    if status.observed:
        facts.append(("observed", "only: what would be done about faults is told, and nothing is done"))
    if status.ended_at:
        facts.append(("ended", ended_text(status).removeprefix("ended ").partition(",")[0]))
    ready = UNKNOWN
    if members is not None:
        joined = f" ({members.there} joined)" if members.there != members.ready else ""
        ready = f"{members.ready} of {members.wanted} ready{joined}, {members.spares} spare"
    facts += [("round", number(status.round)), ("members", ready)]
    facts += [("self-tests" if place == 0 else "", each) for place, each in enumerate(_tests(status))]
    facts += [("links", status.links)] if status.links else []
    # Nobody is to take a job for healthy that makes no steps.
    expected_s = max(QUIET_S_MIN, STEPS_MISSED * (status.step_time_s or 0.0))
    stands_still = status.step_age_s is not None and status.ended_at is None and status.step_age_s > expected_s
    of_all = f" of {status.until_step}" if status.until_step is not None else ""
    still = f"; no step for {seconds(status.step_age_s)}" if stands_still else ""
    facts += [
        ("world size", number(status.world_size)),
        ("step", f"{number(status.step)}{of_all}{still}"),
        ("loss", number(status.loss)),
    ]
    if (since := status.unhealthy_from) is not None:  # the history that is trained on is to be given up
        facts.append(("unhealthy", f"not finite from step {since} on; no later one is restored"))
    if status.unfollowed and status.ended_at is None:
        facts.append(("divergence", f"not healed if it comes: {status.unfollowed}"))
    return [
        *facts,
        ("step time", seconds(status.step_time_s)),
        ("checkpoint", _checkpoint(status)),
        ("verified", _verified(status)),
        ("restarts", number(status.restarts)),
        ("evictions", number(status.evictions)),
        ("incidents", f"{number(status.incidents_open)} open, {number(status.incidents_total)} in all"),
        ("avoided nodes", UNKNOWN if avoided is None else ", ".join(avoided) or "none"),
        *(("faults gather" if place == 0 else "", each.says) for place, each in enumerate(status.gatherings)),
    ]


def ended_text(status: SeenStatus) -> str:
    """`ended 12:03:04, Succeeded`, in local time; with the day when that is more than a day ago.

    `status.now` is when it is said.
    """
    assert status.ended_at is not None
    at = datetime.fromtimestamp(status.ended_at)
    is_recent = status.now is not None and status.now - status.ended_at < DAY_S
    return f"ended {at:%H:%M:%S}, {status.phase}" if is_recent else f"ended {at:%Y-%m-%d %H:%M:%S}, {status.phase}"


def _tests(status: SeenStatus) -> list[str]:
    """Only while some are waited for, a line for each that the status names."""
    told = []
    for test in status.tests or ():
        if test.waits_for:
            waits = f"waits for {test.waits_for}"
        else:
            waits = "no ranks before" if test.bars else "waits until no worker runs"
        asked = "asked" if status.now is None else f"asked {seconds(max(0.0, status.now - test.at))} ago"
        told.append(f"{test.level} of {test.node}, {asked} ({test.reason}); {waits}")
    rest = (status.tests_total or 0) - len(told)
    return [*told, f"{rest} more"] if rest > 0 else told


def _checkpoint(status: SeenStatus) -> str:
    saved = status.last_checkpoint
    if saved is None:
        return _no_checkpoint(status)
    told = f"step {saved.step}"
    if saved.at is not None and status.now is not None:
        told += f", {seconds(max(0.0, status.now - saved.at))} ago"
    verified = status.verified_step is not None and saved.step <= status.verified_step
    return f"{told}, verified" if verified else told


def _verified(status: SeenStatus) -> str:
    """Up to where the job is known to be sound, and by what. That nobody told is no word for it."""
    if status.verified_step is None:
        return f"{UNKNOWN} (nothing has proved a step yet)" if status.source is Source.WATCHDOG else UNKNOWN
    told = f"step {status.verified_step}" + (f", by {status.verified_by}" if status.verified_by else "")
    behind = (status.step or 0) - status.verified_step
    return f"{told}; nothing proved the {behind} steps since" if behind > UNPROVED_STEPS else told


def _no_checkpoint(status: SeenStatus) -> str:
    """A record that counts no incidents holds nothing that a watchdog ever said, of checkpoints either."""
    return UNKNOWN if status.incidents_total is None else "none"


def job_name(job: str) -> str:
    """`-o name`, as kubectl writes it: it can be given to kubectl again."""
    return f"trainingjob.holdfast.dev/{job.partition('/')[2]}"


JOB_HEADERS = ("NAMESPACE", "NAME", "PHASE", "STEP", "READY", "INCIDENTS", "ETTR")
JOB_WIDE_HEADERS = (*JOB_HEADERS, "ROUND", "WORLD SIZE", "RESTARTS", "CHECKPOINT")


def jobs_text(jobs: Sequence[SeenStatus]) -> str:
    """One line per job."""
    return table(JOB_HEADERS, [_job_row(job) for job in jobs]) if jobs else "no job"


def jobs_wide_text(jobs: Sequence[SeenStatus]) -> str:
    """One longer line per job."""
    rows = [
        (*_job_row(job), number(job.round), number(job.world_size), number(job.restarts), _checkpoint(job))
        for job in jobs
    ]
    return table(JOB_WIDE_HEADERS, rows) if jobs else "no job"


def _job_row(job: SeenStatus) -> tuple[str, ...]:
    namespace, _, name = job.job.partition("/")
    ready = UNKNOWN if job.members is None else f"{job.members.ready}/{job.members.wanted}"
    incidents = number(job.incidents_total)
    return (namespace, name, job.phase or UNKNOWN, number(job.step), ready, incidents, ratio(job.ettr))


RANK_HEADERS = ("RANK", "NODE", "PROCESS", "PHASE", "STEP", "LOSS", "STEP TIME", "PROGRESS", "HEARD", "PID")
NO_ROUND = "no round is running"


def rank_row(rank: RankStatus) -> tuple[str, ...]:
    """The cells of one rank, in the order of `RANK_HEADERS`."""
    return (
        str(rank.rank),
        rank.node,
        rank.process.value,
        phase_word(rank) or UNKNOWN,
        number(rank.step),
        number(rank.loss),
        seconds(rank.step_time_s),
        ago(rank.progress_age_s),
        ago(rank.heard_age_s),
        number(rank.pid),
    )


def phase_word(rank: RankStatus) -> str | None:
    """Where in the step the rank is, in a word; None is Unknown. On the wire it is a number."""
    return None if rank.phase is None else rank.phase.name.lower()


def rank_shown(rank: RankStatus) -> dict[str, Any]:
    """A rank for `-o json` and `-o yaml`."""
    return {**msgspec.to_builtins(rank), "phase": phase_word(rank)}


def ranks_text(ranks: Sequence[RankStatus]) -> str:
    """One line per rank."""
    return table(RANK_HEADERS, [rank_row(rank) for rank in ranks]) if ranks else NO_ROUND


def ranks_wide_text(ranks: Sequence[RankStatus]) -> str:
    """One longer line per rank."""
    rows = [(*rank_row(rank), rank.member, number(rank.local_grad_norm), number(rank.grad_norm)) for rank in ranks]
    return table((*RANK_HEADERS, "MEMBER", "LOCAL NORM", "GRADIENT NORM"), rows) if ranks else NO_ROUND


NODE_HEADERS = ("NODE", "HEARD", "GPUS", "HEALTH", "HOTTEST", "POWER", "BUSY", "TROUBLE")
GPU_HEADERS = ("NODE", "GPU", "UUID", "HEALTH", "TEMPERATURE", "MEMORY", "POWER", "BUSY")
NO_NODE = "no agent has reported"
HEARING = {Hearing.SILENT: "silent", Hearing.ENDED: "of a job that is over"}
# A margin worth a word: the detectors' own is 3 C, for a minute.
WARM_C = 5.0


def nodes_text(nodes: Sequence[NodeStatus]) -> str:
    """One line per node."""
    return table(NODE_HEADERS, [_node_row(node) for node in nodes]) if nodes else NO_NODE


def nodes_wide_text(nodes: Sequence[NodeStatus]) -> str:
    """One line per GPU; a node without any has one line of its own."""
    rows: list[tuple[str, ...]] = []
    for node in nodes:
        if not node.gpus:
            rows.append((node.node, "none", *[UNKNOWN] * 6))
        for gpu in node.gpus:
            heats = (_unit(gpu.temperature_c, "C"), _unit(gpu.memory_temperature_c, "C"))
            power, busy = _unit(gpu.power_w, "W"), _percent(gpu.utilization_ratio)
            rows.append((node.node, str(gpu.index), gpu.uuid, gpu.health.value, *heats, power, busy))
    return table(GPU_HEADERS, rows) if rows else NO_NODE


def _node_row(node: NodeStatus) -> tuple[str, ...]:
    temperatures = [gpu.temperature_c for gpu in node.gpus if gpu.temperature_c is not None]
    powers = [gpu.power_w for gpu in node.gpus if gpu.power_w is not None]
    counts = {health: sum(gpu.health is health for gpu in node.gpus) for health in GpuHealth}
    healths = ", ".join(f"{count} {health.value.lower()}" for health, count in counts.items() if count)
    busy = [gpu.utilization_ratio for gpu in node.gpus if gpu.utilization_ratio is not None]
    return (
        node.node,
        ago(node.heard_age_s),
        str(len(node.gpus)),
        healths or "none",
        _unit(max(temperatures, default=None), "C"),
        _unit(sum(powers) if powers else None, "W"),
        _percent(sum(busy) / len(busy) if busy else None),
        _trouble(node),
    )


def _trouble(node: NodeStatus) -> str:
    """What is wrong with it, as short as a column is: all that is known is in `-o yaml`."""
    margins = [gpu.margin_c for gpu in node.gpus if gpu.margin_c is not None]
    told = [HEARING[node.hearing]] if node.hearing in HEARING else []
    told += [f"avoided: {node.avoided}"] if node.avoided else []
    told += [node.tested] if node.tested else []
    told += sorted({each.kind.value for each in node.conditions if each.state is ConditionState.RAISED})
    told += [f"{number(min(margins))} C below slowing down"] if margins and min(margins) < WARM_C else []
    unreadable = ", ".join(sorted({each.source for each in node.unreadable}))
    told += [f"cannot read {unreadable}"] if unreadable else []
    told += [f"known for: {node.known}"] if node.known else []
    return "; ".join(told) or "none"


def _unit(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{number(value)} {unit}"


def _percent(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{ratio:.0%}"


RUNG_WORDS = {
    Rung.SKIP_STEP: "skipped the step",
    Rung.REENTER: "re-entered",
    Rung.RESPAWN: "respawned",
    Rung.SWAP: "swapped in a spare",
    Rung.SHRINK: "shrank",
    Rung.REWIND: "rewound",
    Rung.PAGE: "paged a human",
}
# No node is to blame for these.
_NOBODY = (FindingKind.USER_CODE, FindingKind.NOTHING_TO_RESTORE)
CAUSE_WIDTH = 34
GPU_WIDTH = 12
INCIDENT_HEADERS = ("INCIDENT", "KIND", "CULPRIT", "CAUSE", "RUNG", "DETECTED", "NEW STEP", "STEPS LOST", "STATE")
RECORDED_HEADERS = ("INCIDENT", "KIND", "CULPRIT", "CAUSE", "ACTION", "NEW STEP", "STATE")


def culprit_text(incident: Incident) -> str:
    """Who it was, with a question mark where nobody knows. A GPU's UUID is cut to what tells it apart in a job."""
    if incident.kind is FindingKind.NOTHING_TO_RESTORE:
        return "the checkpoints"
    if incident.kind is FindingKind.USER_CODE:
        return f"the script, {incident.culprit}"
    if incident.innocent:
        return incident.blamed
    gpu = incident.culprit.gpu[:GPU_WIDTH] if incident.culprit.gpu else None
    return _doubted(incident, msgspec.structs.replace(incident.culprit, gpu=gpu))


def _doubted(incident: Incident, who: Subject) -> str:
    """`node a?` where a node is named for being concerned and not for being at fault."""
    named = who.node is not None and incident.confidence is Confidence.UNKNOWN
    return f"{who}?" if named else str(who)


def is_report(incident: Incident) -> bool:
    """Whether it was only to be known: nothing was done, and training went on."""
    return healed_no_round(incident) and not incident.actions


def in_one_line(text: str, width: int = CAUSE_WIDTH) -> str:
    """The text without line breaks, cut where it gets too wide for a table."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else f"{flat[: width - 1]}…"


def healed_no_round(incident: Incident) -> bool:
    """Whether it was over without a new round: a node without ranks left, or the job ended."""
    return incident.state is IncidentState.RECOVERED and incident.recovered_round is None


def runs_again(incident: Incident) -> bool:
    """Whether it was healed without a step to prove it: the script publishes none, or the job ended first."""
    return incident.state is IncidentState.RECOVERED and incident.recovered_at is None


def rung_text(incident: Incident) -> str:
    """The highest rung climbed, in words; of a job that is only observed the one that would be."""
    if incident.state is IncidentState.OBSERVED and incident.rung is not None:
        return f"would: {incident.rung.value} {incident.rung.name.lower().replace('_', ' ')}"
    return "none" if incident.rung is None else f"{incident.rung.value} {RUNG_WORDS[incident.rung]}"


def incidents_text(incidents: Sequence[Incident]) -> str:
    """One line per incident, oldest first."""
    rows = [_incident_row(each, _cause_in_one_line(each)) for each in incidents]
    return table(INCIDENT_HEADERS, rows) if rows else "no incident"


def incidents_wide_text(incidents: Sequence[Incident]) -> str:
    """The same with every word of the cause, and in which round it broke."""
    rows = []
    for each in incidents:
        rounds = f"{number(each.round)} to {number(each.recovered_round)}"
        rows.append((*_incident_row(each, " ".join(f"{each.cause}{_slowed(each)}".split())), rounds))
    return table((*INCIDENT_HEADERS, "ROUND"), rows) if rows else "no incident"


def _cause_in_one_line(incident: Incident) -> str:
    """What slowness costs is not cut off."""
    cost = _slowed(incident)
    return in_one_line(incident.cause, CAUSE_WIDTH - len(cost)) + cost


def _slowed(incident: Incident) -> str:
    return "" if incident.slowed is None else f", {incident.slowed.rank_hours:.3g} rank-hours"


def _incident_row(incident: Incident, cause: str) -> tuple[str, ...]:
    return (
        incident.id,
        incident.kind.value,
        culprit_text(incident),
        cause,
        rung_text(incident),
        seconds(incident.time_to_detect_s),
        seconds(incident.time_to_recover_s),
        number(incident.lost_steps),
        incident.state.value,
    )


def recorded_incidents_text(incidents: Sequence[Mapping[str, object]]) -> str:
    """Those a TrainingJob's status keeps, which may be of another version: read loosely. Oldest first."""
    rows = []
    for incident in incidents:
        told = {name: UNKNOWN if value in (None, "") else str(value) for name, value in incident.items()}
        named = (told.get(name, UNKNOWN) for name in ("id", "kind", "culprit"))
        hours = incident.get("slowedRankHours")
        cost = f", {hours:.3g} rank-hours" if isinstance(hours, int | float) else ""
        cause, action = told.get("cause", UNKNOWN), told.get("action", UNKNOWN)
        long = (in_one_line(cause, CAUSE_WIDTH - len(cost)) + cost, in_one_line(action))
        recovered = incident.get("timeToRecoverSeconds")
        recovered_s = float(recovered) if isinstance(recovered, int | float) else None
        rows.append((*named, *long, seconds(recovered_s), told.get("state", UNKNOWN)))
    return table(RECORDED_HEADERS, rows) if incidents else "no incident"


def story(incident: Incident) -> str:
    """Everything known of one incident, for somebody who was not there."""
    state = "was reported" if is_report(incident) else f"is {incident.state.value.lower()}"
    is_named_whole = not incident.innocent and incident.kind not in _NOBODY
    whose = _doubted(incident, incident.culprit) if is_named_whole else culprit_text(incident)
    sections = {
        "evidence": [(each.at, f"{each.source}: {each.says}") for each in incident.evidence],
        "actions": [
            (each.at, f"rung {each.rung.value}: {each.does}, because {each.reason}") for each in incident.actions
        ],
        "timeline": [(each.at, each.what) for each in incident.timeline],
    }
    # Seconds since the fault began; evidence may be older.
    told = {
        title: [f"{at - incident.began_at:+8.3f} s  {says}" for at, says in moments]
        for title, moments in sections.items()
    }
    told |= {"error": incident.error.splitlines(), "note": incident.note.splitlines()}
    parts = [
        f"{incident.id}: {incident.kind} of {whose} in {incident.job}",
        f"It {state}. {_cost(incident)}{_cost_of_slowness(incident)}",
        pairs(
            [
                ("cause", incident.cause),
                ("confidence", confidence_text(incident)),
                ("known", known_text(incident)),
            ]
        ),
        *("\n".join([title, *(f"  {line}" for line in lines)]) for title, lines in told.items() if lines),
    ]
    return "\n\n".join(parts)


def known_text(incident: Incident) -> str:
    """How soon the cause was known, beside the target."""
    target = f"target {seconds(CAUSE_WITHIN_S)}"
    took_s = incident.time_to_cause_s
    if took_s is None and incident.has_known_cause:
        return f"at a time that was not recorded ({target})"
    if took_s is None:
        return f"not yet ({target})" if incident.state is IncidentState.OPEN else f"never ({target})"
    if took_s == 0.0:
        return f"when it was detected ({target})"
    late = "" if took_s <= CAUSE_WITHIN_S else ": missed"
    return f"{seconds(took_s)} after it was detected ({target}{late})"


def confidence_text(incident: Incident) -> str:
    """How sure it is who was at fault."""
    if incident.kind is FindingKind.USER_CODE:
        return f"{incident.confidence} that the script raised it; no node is to blame"
    if incident.kind is FindingKind.NOTHING_TO_RESTORE:
        return f"{incident.confidence} that none can be restored; no node is to blame"
    if incident.innocent:
        return f"{incident.confidence} that the pod was ended; node {incident.culprit.node} is not to blame"
    if incident.confidence is not Confidence.UNKNOWN:
        return f"{incident.confidence} that {incident.culprit} is the culprit"
    if incident.culprit.node is None:
        return f"{incident.confidence}: nobody can be named"
    return f"{incident.confidence}: {incident.culprit} is concerned, and nobody is proved to be the culprit"


def _cost_of_slowness(incident: Incident) -> str:
    """In hours of one rank, which are GPU-hours where each has a GPU."""
    if (slowed := incident.slowed) is None:
        return ""
    return (
        f" So far all ranks waited {seconds(slowed.excess_s)} in each of {slowed.steps} steps: "
        f"{slowed.rank_hours:.3g} rank-hours (GPU-hours, where each rank has a GPU)."
    )


def _cost(incident: Incident) -> str:
    detected = f"It was detected {seconds(incident.time_to_detect_s)} after it began"
    if is_report(incident) or incident.state is IncidentState.OBSERVED:
        return f"{detected}; nothing was done about it."
    if healed_no_round(incident):
        return f"{detected}; no round had to be healed."
    if runs_again(incident):
        return f"{detected}; workers run again, and no new step was seen."
    if incident.time_to_recover_s is None:
        return f"{detected}; no new step has completed since."
    lost = "an unknown number of steps" if incident.lost_steps is None else f"{incident.lost_steps} steps"
    return (
        f"{detected}; the first new step completed {seconds(incident.time_to_recover_s)} after it; it cost {lost}."
    )
