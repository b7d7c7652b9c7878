"""Which policy of a job is in force, and how a changed one stands that is checked before. Pure.

The watchdog's journal says which one is in force; here is decided which one it is told. With `spec.policyCheck` a
policy that is changed while the job trains is held back at first: the watchdog gets the changed spec with the
policy of before, marked as held. One pod tries the changed policy on the run so far, and stays as the record of
what it found for as long as the change is pending; deleted, it is made anew.

    changed ──▶ Checking ──▶ Better, Noise, NotJudged ──▶ in force
                        ├──▶ Worse, CheckFailed ── warn ──▶ in force
                        └──▶ Worse, CheckFailed ── require ──▶ held, until it is changed back or not required
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import msgspec

from holdfast.api.faultpolicy import Heartbeat
from holdfast.api.jobstatus import Condition
from holdfast.api.judgement import Brief, Judgement
from holdfast.api.policy import Policy
from holdfast.api.trainingjob import PolicyCheck, TrainingJob
from holdfast.operator.decide.checkpod import change_of, found_by, pod_name
from holdfast.operator.decide.pods import why_pending
from holdfast.operator.kube.objects import Pod, seconds_of

CHECKED: Final = "PolicyChecked"
"""The condition."""
CHECKING: Final = "Checking"
FAILED: Final = "CheckFailed"
REASONS: Final = {
    Judgement.BETTER: "Better",
    Judgement.WORSE: "Worse",
    Judgement.NOISE: "Noise",
    Judgement.NOT_JUDGED: "NotJudged",
}
RESULTS: Final = frozenset((*REASONS.values(), FAILED))
LATE_S: Final = 60.0
"""Beyond its own limit, which counts from when a kubelet has taken it."""
NOT_TRAINED: Final = Brief(Judgement.NOT_JUDGED, "the job has trained no step yet")
HELD: Final = (
    "the changed policy is held back and the one before stays in force: change it back, or set spec.policyCheck "
    "to warn or none, which lets it take effect"
)


@dataclass(frozen=True, slots=True)
class Change:
    """What may be a change. `wanted` is the spec's policy; `known` the one in force, None where nobody told.

    `has_trained`: there is a run to try it on. `checks` are the pods that try policies of this job. `recorded` is
    the condition as it was last written. `refused` is what was said against making such a pod, by the change it
    was to try; `never` is why none can be made at all, empty where one can. `limit_s` is how long one may take.
    """

    mode: PolicyCheck
    wanted: Policy
    known: Policy | None
    has_trained: bool
    checks: tuple[Pod, ...] = ()
    recorded: Condition | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    never: str = ""
    limit_s: float = 900.0

    @property
    def is_pending(self) -> bool:
        """Whether the watchdog has another policy than the spec's, of an earlier version or held back."""
        known = self.known
        is_behind = known is not None and (known.generation < self.wanted.generation or known.held)
        return is_behind and known is not None and known.judged() != self.wanted.judged()

    @property
    def digest(self) -> str:
        """Of the policy that is wanted."""
        told = msgspec.json.encode(self.wanted.judged(), order="deterministic")
        return hashlib.sha256(told).hexdigest()[:10]


@dataclass(frozen=True, slots=True)
class Standing:
    """`policy` is what the watchdog is to have. `status`, `reason` and `says` are those of the condition, which
    stays as it is without a reason. `starts` is the change that a pod is to try now, empty for none; `ends` are
    pods that nobody needs any more. `again_s` is when to look again though nothing changed.
    """

    policy: Policy
    status: str = "Unknown"
    reason: str = ""
    says: str = ""
    starts: str = ""
    ends: tuple[Pod, ...] = ()
    again_s: float | None = None


def stand(change: Change, now: float) -> Standing:
    """How it stands now, in wall seconds."""
    there = tuple(each for each in change.checks if each.metadata.deletion_timestamp is None)
    if change.mode is PolicyCheck.NONE:
        says = "spec.policyCheck is none: a changed policy takes effect at once"
        return Standing(change.wanted, reason="NotAsked", says=says, ends=there)
    if change.known is None:
        return Standing(change.wanted)
    mine = next((each for each in there if change_of(each) == change.digest), None)
    others = tuple(each for each in there if each is not mine)
    if not change.is_pending:
        return _settled(change, mine, others)
    if not change.has_trained:
        return _taking_effect(change, NOT_TRAINED, there)
    held = msgspec.structs.replace(change.wanted.judged_as(change.known), held=True)
    if change.wanted.is_kept_out:
        says = "the changed policy is checked when the job trains again; the one before stays in force"
        return Standing(held, "False", "Waiting", says, ends=there)
    found = _found(change, mine, now)
    is_free = not any(
        each.metadata.name == _name(change) for each in change.checks
    )  # one of it may be on its way out
    starts = change.digest if mine is None and is_free else ""
    if found is None:
        says = (
            f"{_name(change)} tries the changed policy on the run so far, for at most {change.limit_s:g} s; "
            "the one before stays in force"
        )
        again_s = None if mine is None else max(0.0, _overdue_at(change, mine) - now)
        return Standing(held, "False", CHECKING, says, starts, others, again_s)
    if change.mode is PolicyCheck.WARN or (isinstance(found, Brief) and found.says is not Judgement.WORSE):
        return _taking_effect(change, found, others)
    reason, says = _told(found)
    says = f"{says}; {HELD}"
    if mine is not None:
        hint = "to see all of it: kubectl logs" if isinstance(found, Brief) else "to try again: kubectl delete pod"
        says = f"{says}; {hint} {mine.metadata.name} -n {mine.metadata.namespace}"
    return Standing(held, "False", reason, says, starts, others)


def as_in_force(job: TrainingJob, policy: Policy) -> TrainingJob:
    """The job as pods are made of it: they beat as the watchdog expects them to."""
    if not policy.held:
        return job
    beats = Heartbeat.model_construct(
        interval=timedelta(seconds=policy.heartbeat_interval_s), lost=timedelta(seconds=policy.lost_after_s)
    )
    faults = job.spec.fault_policy.model_copy(update={"heartbeat": beats})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"fault_policy": faults})})


def _settled(change: Change, mine: Pod | None, others: Sequence[Pod]) -> Standing:
    """No change is pending. What was found of the last one is told before its pod goes."""
    recorded = change.recorded
    is_told = recorded is not None and recorded.status != "False" and recorded.reason in RESULTS
    found = found_by(mine) if mine is not None else None
    if found is not None and not is_told:
        return _taking_effect(change, found, others)
    there = (*others, *(() if mine is None else (mine,)))
    if is_told:
        return Standing(change.wanted, ends=there)
    return Standing(change.wanted, "True", "InForce", "the policy of the spec is in force", ends=there)


def _taking_effect(change: Change, found: Brief | str, ends: Sequence[Pod]) -> Standing:
    reason, says = _told(found)
    if reason == FAILED:
        says = f"{says}; the changed policy takes effect unchecked: spec.policyCheck is {change.mode.value}"
        return Standing(change.wanted, "Unknown", reason, says, ends=tuple(ends))
    if reason == REASONS[Judgement.WORSE]:
        says = f"{says}; it takes effect all the same: spec.policyCheck is {change.mode.value}"
    else:
        says = f"{says}; it takes effect"
    return Standing(change.wanted, "True", reason, says, ends=tuple(ends))


def _found(change: Change, mine: Pod | None, now: float) -> Brief | str | None:
    """What came of it, or why nothing does; None while it is on its way."""
    if mine is not None:
        if (found := found_by(mine)) is not None:
            return found
        if now < _overdue_at(change, mine):
            return None
        waits = why_pending(mine) if mine.status.phase == "Pending" else ""
        return f"{mine.metadata.name} is not done after {change.limit_s:g} s" + (f": {waits}" if waits else "")
    refused = change.never or change.refused.get(change.digest, "")
    return f"no pod can be made that tries it: {refused}" if refused else None


def _overdue_at(change: Change, mine: Pod) -> float:
    return (seconds_of(mine.metadata.creation_timestamp) or 0.0) + change.limit_s + LATE_S


def _name(change: Change) -> str:
    return pod_name(change.wanted.job.partition("/")[2], change.digest)


def _told(found: Brief | str) -> tuple[str, str]:
    """Reason and sentence."""
    if isinstance(found, str):
        return FAILED, f"the changed policy could not be tried: {found}"
    if found.says is Judgement.NOT_JUDGED:
        return REASONS[found.says], f"the changed policy cannot be judged: {found.why}"
    more = [f"{_more(found.minutes)} minutes", f"{_more(found.gpu_hours)} GPU-hours"]
    if found.money is not None:
        more.append(f"{_more(found.money)} {found.currency}".rstrip())
    figures = f"{', '.join(more)} lost, {_more(found.evictions)} evictions and {_more(found.pages)} pages"
    return REASONS[found.says], (
        f"under the changed policy {found.faults} faults in {found.days:.3g} days come to {figures} (mean of "
        f"{found.seeds} replays; by {found.by} the two are {abs(found.differs):,.1f} apart, and the replay is "
        f"{found.error:,.1f} beside the run)"
    )


def _more(number: float) -> str:
    return f"{round(number, 1) + 0.0:+,.1f}"  # no -0.0
