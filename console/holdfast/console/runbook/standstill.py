"""Checks of a job that makes no steps: who is waited for, and what for."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.api.condition import ConditionKind
from holdfast.api.finding import FindingKind
from holdfast.api.incident import Incident
from holdfast.api.rankrecord import Phase
from holdfast.api.status import JobPhase, RankStatus
from holdfast.api.telemetry import ProcessState
from holdfast.console.runbook.answer import Said, Verdict, fine, hint, named, proved, unknown
from holdfast.console.runbook.byincident import ByIncident, agents_away, follows, unheard
from holdfast.console.runbook.check import Check
from holdfast.console.runbook.known import Known, duration, listed, nodes_of, pending
from holdfast.console.runbook.symptom import Symptom

HUNG, START, STALE, COST = Symptom.HUNG, Symptom.WILL_NOT_START, Symptom.CHECKPOINT_STALE, Symptom.COST
DISKS: Final = (ConditionKind.DISK_FULL, ConditionKind.DISK_READ_ONLY)
STILL_S: Final = 30.0
STEPS_STILL: Final = 4.0  # times a step
MOST: Final = 0.5
UNDECIDED: Final = "nothing can be decided"
BYTEROBUST: Final = "of hangs 21 of 26 were of the infrastructure: https://arxiv.org/abs/2509.16293, table 2"
OVER: Final = (JobPhase.SUCCEEDED, JobPhase.FAILED, "Stopped")


def is_held(known: Known) -> Said:
    """Somebody paused it, or its spec suspends it."""
    if known.phase is None:
        return unknown(known.why_unread("status"))
    if known.phase == JobPhase.SUSPENDED:
        return proved(f"the phase is Suspended: {known.reason}")
    return fine(f"nobody holds it: the phase is {known.phase}")


def is_over(known: Known) -> Said:
    """It has come to an end."""
    if known.phase is None:
        return unknown(known.why_unread("status"))
    if known.phase in OVER:
        return follows(known, f"the job is over: {known.phase}, {known.reason}")
    return fine(f"the job goes on: the phase is {known.phase}")


def is_undecided(known: Known) -> Said:
    """The watchdog says that it can decide nothing."""
    if known.phase is None:
        return unknown(known.why_unread("status"))
    if UNDECIDED in known.reason:
        return proved(known.reason)
    if known.status is None:
        return unknown(known.why_unread("status"))
    return fine("the watchdog answers, and its store takes what it writes")


def is_short(known: Known) -> Said:
    """Fewer members than a round needs. Where something else explains that, this only follows from it."""
    status = known.status
    if status is None or status.members is None:
        return unknown(known.why_unread("status"))
    there, wanted = status.members.there, status.members.wanted
    if known.phase not in (JobPhase.PENDING, JobPhase.FORMING, JobPhase.RECOVERING) or there >= wanted:
        return fine(f"no member is waited for: {there} of {wanted} have ranks, and the phase is {known.phase}")
    says = f"{there} of {wanted} members joined; {status.reason}"
    pressing = [each for each in known.recent() if known.is_pressing(each)]
    if lost := [each.id for each in pressing if each.kind is FindingKind.MEMBER_LOST]:
        return hint(f"{says}; it follows from {listed(lost)}")
    if pending(known):
        return hint(f"{says}; it follows from pods that are pending")
    return proved(says) if "waiting for members" in status.reason else named(says)


def is_backing_off(known: Known) -> Said:
    """What fails again and again is tried less often."""
    if known.phase is None:
        return unknown(known.why_unread("status"))
    if "backing off" in known.reason:
        return follows(known, known.reason)
    return fine("no restart is held back")


def is_tested(known: Known) -> Said:
    """Members that get no ranks before they have answered a self-test."""
    if known.status is None:
        return unknown(known.why_unread("status"))
    bars = [each for each in known.status.tests if each.bars]
    if not bars:
        return fine("no self-test keeps a member from its ranks")
    one = bars[0]
    waits = f", waits for {one.waits_for}" if one.waits_for else ""
    says = f"the {one.level} self-test of {one.node} was asked {known.ago(one.at)} and is not answered{waits}"
    return named(f"{says} ({len(bars)} in all)", node=one.node)


def is_stopped(known: Known) -> Said:
    """Processes that the kernel says are stopped or in uninterruptible sleep."""
    if known.ranks is None:
        return unknown(known.why_unread("ranks"))
    for state, what in (
        (ProcessState.STOPPED, "stopped (SIGSTOP, a debugger)"),
        (ProcessState.BLOCKED, "blocked"),
    ):
        found = [each for each in known.ranks if each.process is state]
        if found:
            one = found[0]
            who = (
                f"rank {one.rank} on {one.node}" if len(found) == 1 else f"{len(found)} ranks on {nodes_of(found)}"
            )
            says = f"the process of {who} is {what}"
            about = {"rank": one.rank, "node": one.node}
            # One that sleeps in the kernel may wake by itself; one that was stopped holds all others up.
            return (
                proved(says, **about) if state is ProcessState.STOPPED else named(f"{says} in the kernel", **about)
            )
    if known.unheard:
        return unknown(known.unheard)
    unseen = [each for each in known.ranks if each.process is ProcessState.UNKNOWN]
    if unseen:
        return unknown(f"the state of {len(unseen)} processes is not known, on {nodes_of(unseen)}")
    return fine(f"the processes of {len(known.ranks)} ranks run")


def absent(known: Known) -> Said:
    """The rank that a hang names, or that is in another place than all others and stands there."""
    found = _HANG(known)
    if known.ranks is None:
        return unknown(known.why_unread("ranks"))
    if found.is_of_now:
        return found
    earlier = found if found.verdict is Verdict.SUSPECT else None
    if known.unheard:
        return earlier or unknown(known.unheard)
    still = _still(known)
    if not still:
        return earlier or fine(f"all {len(known.ranks)} ranks published something lately")
    behind = _behind(known.ranks)
    if len(behind) == 1:
        (one,) = behind
        says = f"rank {one.rank} on {one.node} is {_where(one)} for {duration(one.progress_age_s or 0.0)}"
        return named(f"{says}, {len(known.ranks) - 1} others are elsewhere", rank=one.rank, node=one.node)
    return earlier or unknown(f"{len(still)} ranks stand still, and none is in another place than the rest")


@dataclass(frozen=True, slots=True)
class InPhase:
    """Suspects that ranks stand still in one phase."""

    phase: Phase
    doing: str

    def __call__(self, known: Known) -> Said:
        if known.unheard:
            return unknown(known.unheard)
        assert known.ranks is not None
        there = [each for each in _still(known) if each.phase is self.phase]
        if not there:
            return fine(f"no rank stands still in its phase {self.phase.name.lower()}")
        longest = max(each.progress_age_s or 0.0 for each in there)
        one = there[0]
        says = f"{len(there)} of {len(known.ranks)} ranks {self.doing} for {duration(longest)}"
        says += f" ({nodes_of(there)})"
        is_most = len(there) > MOST * len(known.ranks)
        if self.phase is Phase.CHECKPOINT and disk(known).is_of_now:
            return hint(f"{says}; it follows from a disk that takes no writes", rank=one.rank, node=one.node)
        return (named if is_most else hint)(says, rank=one.rank, node=one.node)


def _still(known: Known) -> Sequence[RankStatus]:
    """Ranks that published nothing for longer than their steps take."""
    step_s = known.status.step_time_s if known.status is not None and known.status.step_time_s else 0.0
    limit_s = max(STILL_S, STEPS_STILL * step_s)
    return [each for each in known.ranks or () if (each.progress_age_s or 0.0) > limit_s]


def _behind(ranks: Sequence[RankStatus]) -> Sequence[RankStatus]:
    """Those with a lower step than most; else the one in a phase in which nobody else is."""
    newest = max((each.step for each in ranks if each.step is not None), default=0)
    low = [each for each in ranks if each.step is not None and each.step < newest]
    if low:
        return low if len(low) < MOST * len(ranks) else ()
    phases = Counter(each.phase for each in ranks)
    return [each for each in ranks if phases[each.phase] == 1] if len(ranks) > 2 else ()


def _where(rank: RankStatus) -> str:
    phase = "nobody knows where" if rank.phase is None else f"in {rank.phase.name.lower()}"
    return phase if rank.step is None else f"{phase} after step {rank.step}"


def _is_of_all(incident: Incident) -> bool:
    return incident.culprit.rank is None and incident.culprit.node is None


def disk(known: Known) -> Said:
    """A disk that is full or read-only: found, or as it is now."""
    found = _DISK(known)
    if found.is_of_now:
        return found
    for node, each in known.raised():
        if each.kind in DISKS:
            return named(f"{each.kind} holds on {node.node} {each.device}: {each.says}", node=node.node)
    return found


_DISK: Final = ByIncident(
    frozenset({FindingKind.CONDITION}),
    "no disk of a node is full or read-only; remote storage is not seen",
    like=lambda each: each.cause in {kind.value for kind in DISKS},
    blind=agents_away,
)
_HANG: Final = ByIncident(
    frozenset({FindingKind.HANG}),
    "no rank was missed at a collective",
    like=lambda each: not _is_of_all(each),
    blind=unheard,
)
WHY = ("why {incident}", "incidents")

CHECKS: Final = (
    Check(
        "held",
        "Somebody paused it",
        {HUNG: 10, START: 10, STALE: 10, COST: 10},
        is_held,
        ("resume --dry-run", "status"),
    ),
    Check("over", "The job is over", {HUNG: 8, START: 8, STALE: 8}, is_over, ("status",)),
    Check(
        "undecided",
        "The watchdog can decide nothing: its store is away or was reset",
        {HUNG: 9, START: 9, STALE: 4},
        is_undecided,
        ("doctor",),
    ),
    Check(
        "too-few-members",
        "Too few nodes are there",
        {HUNG: 24, START: 35, COST: 12},
        is_short,
        ("status",),
    ),
    Check(
        "backing-off",
        "A restart is held back, as the last ones failed",
        {HUNG: 7, START: 14},
        is_backing_off,
        ("incidents",),
    ),
    Check("self-test-waits", "A self-test is not answered", {START: 16, HUNG: 5}, is_tested, ("nodes",)),
    Check(
        "stopped-process",
        "A worker process is stopped, or blocked in the kernel",
        {HUNG: 26, STALE: 5},
        is_stopped,
        ("logs --rank {rank} --tail 50", "ranks"),
    ),
    Check(
        "absent-rank",
        "One rank does not come to the collective that all others wait in",
        {HUNG: 30, STALE: 5},
        absent,
        ("logs --rank {rank} --tail 50", "ranks"),
        BYTEROBUST,
    ),
    Check(
        "all-wait",
        "All ranks wait and none is missing: the network, or the script waits for itself",
        {HUNG: 14},
        ByIncident(
            frozenset({FindingKind.HANG, FindingKind.COLLECTIVE_FAILED}),
            "no collective failed without a culprit",
            like=_is_of_all,
            blind=unheard,
            proves=False,
        ),
        WHY,
        BYTEROBUST,
    ),
    Check(
        "in-checkpoint",
        "Ranks stand in their checkpoint: storage is slow or full",
        {HUNG: 15, STALE: 18},
        InPhase(Phase.CHECKPOINT, "save their checkpoint"),
        ("nodes", "ranks"),
        "2.1 % of incidents are of file systems: https://arxiv.org/abs/2509.16293, table 1",
    ),
    Check(
        "in-data",
        "Ranks wait for their data",
        {HUNG: 13, START: 7},
        InPhase(Phase.DATA, "wait for data"),
        ("logs --rank {rank} --tail 50", "ranks"),
    ),
    Check(
        "in-start-up",
        "Ranks are before their first step of the round",
        {START: 15, HUNG: 9},
        InPhase(Phase.STARTUP, "are before their first step"),
        ("logs --rank {rank} --tail 50", "ranks"),
    ),
    Check(
        "member-lost",
        "A node or its launcher is gone",
        {HUNG: 19, START: 11, COST: 7},
        ByIncident(frozenset({FindingKind.MEMBER_LOST}), "no launcher was lost"),
        WHY,
    ),
    Check(
        "process-ended",
        "A worker process ended",
        {HUNG: 17, START: 10},
        ByIncident(
            frozenset({FindingKind.PROCESS_EXIT}),
            "no worker ended by a signal or an error from outside the script",
            like=lambda each: "memory" not in each.cause,
        ),
        WHY,
    ),
    Check(
        "disk",
        "A disk is full, or takes no writes",
        {HUNG: 8, STALE: 30, START: 6},
        disk,
        WHY,
        "5 % of incidents are of full disks: https://arxiv.org/abs/2509.16293, table 1",
    ),
)
