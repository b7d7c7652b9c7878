"""Checks of steps that take too long: who is waited for and why, and what is not training at all."""

import itertools
from collections.abc import Callable
from statistics import median
from typing import Final

from holdfast.api.event import CheckpointRecorded
from holdfast.api.finding import FindingKind, SlowCause
from holdfast.api.incident import Incident
from holdfast.console.runbook.answer import Said, fine, hint, named, unknown
from holdfast.console.runbook.byincident import ByIncident
from holdfast.console.runbook.check import Check
from holdfast.console.runbook.known import Known, duration, many
from holdfast.console.runbook.losses import LEARNED_S
from holdfast.console.runbook.symptom import Symptom

SLOW, COST, STALE = Symptom.SLOW, Symptom.COST, Symptom.CHECKPOINT_STALE
STARVES: Final = "the data come too slowly"
SELF_LEARNED_S: Final = 300.0  # a job is compared with itself after 50 looks
STALL_SHARE: Final = 0.05
RESTARTS_MANY: Final = 3
WHAT_IF: Final = "https://arxiv.org/abs/2505.05713"
WHY = ("why {incident}", "ranks")


def unwatched(known: Known) -> str:
    """Why nobody compares how long ranks take."""
    if known.unheard:
        return known.unheard
    if known.status is None or known.status.step_time_s is None:
        return "the script tells no steps, so nobody knows how long one takes"
    return known.young(LEARNED_S)


def unwaited(known: Known) -> str:
    """Why nobody knows how long a rank computes: on a GPU none knows how long it waits for the others."""
    if why := unwatched(known):
        return why
    mute = sum(each.waited_s is None for each in known.ranks or ())
    return (
        f"{mute} of {len(known.ranks or ())} ranks do not tell how long they wait (none on a GPU does)"
        if mute
        else ""
    )


def unlearned(known: Known) -> str:
    """Why the job is not compared with itself yet."""
    return unwatched(known) or known.young(SELF_LEARNED_S)


def _slow_for(cause: SlowCause) -> Callable[[Incident], bool]:
    return lambda each: each.cause == f"slow: {cause.value.lower()}"


def by_cause(cause: SlowCause, sound: str, blind: Callable[[Known], str]) -> ByIncident:
    """Suspects ranks that a detector found slow for that reason."""
    kinds = frozenset({FindingKind.STRAGGLER})
    return ByIncident(kinds, sound, like=_slow_for(cause), blind=blind, proves=False)


def _is_data(incident: Incident) -> bool:
    starves = incident.kind is FindingKind.DATA and incident.cause == STARVES
    return starves or (incident.kind is FindingKind.STRAGGLER and _slow_for(SlowCause.DATA)(incident))


def stalls(known: Known) -> Said:
    """How much of the time training stands still for checkpoints."""
    if known.journal is None:
        return unknown(known.why_unread("journal"))
    told = [(at, each) for at, each in known.told(CheckpointRecorded) if at >= known.since]
    known_s = [each.stall_s for _, each in told if each.stall_s is not None]
    if len(told) < 2:
        return (
            fine(f"{len(told)} checkpoints in {known.span}: they take no time worth naming")
            if known.is_whole
            else (unknown(f"the journal tells of {len(told)} checkpoints in {known.span}"))
        )
    if not known_s:
        return unknown("nobody tells how long training stands still for a checkpoint")
    apart_s = median(after[0] - before[0] for before, after in itertools.pairwise(told))
    share = median(known_s) / apart_s if apart_s > 0 else 0.0
    says = f"a checkpoint stops training for {duration(median(known_s))}, each {duration(apart_s)}: {share:.0%}"
    return named(says) if share > STALL_SHARE else fine(says)


def restarts(known: Known) -> Said:
    """How often rounds began lately: each costs its start, and what is trained again."""
    if known.incidents is None:
        return unknown(known.why_unread("incidents"))
    healed = [each for each in known.recent() if each.recovered_round is not None]
    lost = sum(each.lost_steps or 0 for each in healed)
    says = f"{many(len(healed), 'fault')} in {known.span} needed a new round, {many(lost, 'step')} trained again"
    if len(healed) >= RESTARTS_MANY:
        return named(says, incident=healed[-1].id)
    return hint(says, incident=healed[-1].id) if healed else fine(says)


def smaller(known: Known) -> Said:
    """Whether fewer nodes train than are wanted."""
    status = known.status
    if status is None or status.members is None:
        return unknown(known.why_unread("status"))
    policy = known.policy
    size = policy.processes_per_node if policy is not None else None
    there, wanted = status.members.there, status.members.wanted
    if status.ended_at is not None or not status.world_size:
        return fine("no round runs")
    if there < wanted or (size is not None and status.world_size < wanted * size):
        why = f"; {many(len(status.avoided_nodes), 'node')} avoided" if status.avoided_nodes else ""
        return named(f"{there} of {wanted} nodes train, {status.world_size} ranks{why}")
    return fine(f"all {wanted} nodes train, {status.world_size} ranks")


CHECKS: Final = (
    Check(
        "slow-machine",
        "The machine of one rank computes more slowly than its peers'",
        {SLOW: 14, Symptom.NODE_SUSPECT: 9, COST: 5},
        by_cause(SlowCause.MACHINE, "no rank's own computing is slower than its peers'", unwaited),
        ("why {incident}", "nodes -o wide"),
        f"little of what makes jobs slow is a machine: {WHAT_IF}",
    ),
    Check(
        "slow-data",
        "Ranks wait for their data loader",
        {SLOW: 24, COST: 6},
        ByIncident(
            frozenset({FindingKind.STRAGGLER, FindingKind.DATA}),
            "no rank waits for data for longer than others, nor for a fifth of its time",
            like=_is_data,
            blind=unwatched,
            proves=False,
        ),
        WHY,
    ),
    Check(
        "slow-shape",
        "Some ranks have more to do than others (sequences, last pipeline stage)",
        {SLOW: 26},
        by_cause(SlowCause.SHAPE, "no rank was found to have more to do", unwaited),
        WHY,
        f"the last stage slows 39.3 % of jobs, sequence lengths 21.4 %: {WHAT_IF}",
    ),
    Check(
        "slow-software",
        "Software of one rank is in the way: garbage collection, a stopped process, a neighbour",
        {SLOW: 20},
        by_cause(SlowCause.SOFTWARE, "no rank was found held up by collecting, saving or stopping", unwatched),
        WHY,
        f"Python's garbage collection is among the causes: {WHAT_IF}",
    ),
    Check(
        "slow-everybody",
        "All are slower than they were: storage, a switch, the network, power",
        {SLOW: 22},
        by_cause(SlowCause.EVERYBODY, "a step takes about as long as it did in this round", unlearned),
        ("why {incident}", "nodes"),
        "docs/detectors.md, a slow rank",
    ),
    Check(
        "checkpoint-stalls",
        "Training stands still for checkpoints for too long",
        {SLOW: 13, COST: 11},
        stalls,
        ("status",),
        "the first-order optimum of the interval: https://doi.org/10.1145/361147.361115",
    ),
    Check(
        "restarts",
        "Restarts take the time",
        {SLOW: 16, COST: 30, STALE: 12},
        restarts,
        ("why {incident}", "incidents"),
        "a sixth of GPU time goes with interrupted jobs: https://arxiv.org/abs/2410.21680",
    ),
    Check(
        "fewer-nodes",
        "Fewer nodes train than are wanted",
        {SLOW: 17, COST: 14},
        smaller,
        ("nodes", "status"),
    ),
)
