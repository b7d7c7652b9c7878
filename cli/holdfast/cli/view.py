"""What people are shown of a job, its ranks and nodes: pure functions from what is known to text."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.api.condition import ConditionState
from holdfast.api.incident import CAUSE_WITHIN_S
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
    facts += [("plan", status.plan)] if status.plan else []
    # Nobody is to take a job for healthy that makes no steps.
    expected_s = max(QUIET_S_MIN, STEPS_MISSED * (status.step_time_s or 0.0))
    stands_still = status.step_age_s is not None and status.ended_at is None and status.step_age_s > expected_s
    still = f"; no step for {seconds(status.step_age_s)}" if stands_still else ""
    facts += [
        ("world size", number(status.world_size)),
        ("step", f"{number(status.step)}{'' if status.until_step is None else f' of {status.until_step}'}{still}"),
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
