"""Members whose devices are sound and do not suit what the job asks for: ranks that must share one NVLink domain.

That is no fault of a node, so nothing is held against it, by this job or by another: the member gets no ranks
under this spec, and a human hears of it once. Another size, or no self-tests at all, lets the job go on.
"""

from itertools import islice

import msgspec

from holdfast.api.event import MemberTested
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.incident import Action, IncidentState, Rung
from holdfast.api.selftest import TOPOLOGY, Verdict
from holdfast.watchdog.casebook import act, close, open_incident
from holdfast.watchdog.effect import Notify
from holdfast.watchdog.roster import Member, Standing
from holdfast.watchdog.state import Fit, JobState
from holdfast.watchdog.step import Reason, Step, changed, stay
from holdfast.watchdog.trial import admitted, ask, without_trial
from holdfast.watchdog.wording import NAMED, in_words

REMEDY = (
    "ask for a spec.parallelism.tensor that one domain holds, or place the job on nodes with larger NVLink domains"
)


def misfit_of(event: MemberTested) -> str | None:
    """Why the member's devices do not suit the job, in words; None where anything else failed, or nothing did."""
    failed = [check for check in event.checks if check.verdict is Verdict.FAILED]
    if not failed or any(check.check != TOPOLOGY for check in failed):
        return None
    return failed[0].says


def unfit(state: JobState, member: Member, says: str, now: float) -> Step:
    """The member gets no ranks under this spec. The first one is an incident of the job, told to a human."""
    fit = msgspec.structs.replace(state.fit, misfits={**state.fit.misfits, member.name: says})
    members = state.members
    if member.standing is Standing.PRESENT:
        members = members.changed(member.name, standing=Standing.TESTING)
    state = changed(without_trial(state, member.name), fit=fit, members=members)
    reason = Reason("self-test", f"{member.name} does not suit the job: {says}")
    return Step(state, (), reason) if fit.incident is not None else _told(state, member, says, now)


def refit(state: JobState, now: float) -> Step:
    """The spec says something else: what was tested before tells nothing of it, so who has no ranks is asked."""
    policy, misfits = state.policy, state.fit.misfits
    if policy is None:
        return stay(state)
    if policy.preflight is None and misfits:
        state = changed(state, fit=Fit(policy.tensor))
        for name in misfits:
            state = admitted(state, name, now)
        return Step(state, (), Reason("self-test", f"{in_words(misfits)}: taken untested, as the spec asks"))
    if policy.tensor == state.fit.tensor:
        return stay(state)
    state = changed(state, fit=Fit(policy.tensor))
    idle = (state.member(name) for name in {*misfits, *state.members.beyond(state.ranked())})
    names = tuple(sorted(each.name for each in idle if each is not None and each.standing is not Standing.LOST))
    if policy.preflight is None or not names:
        return stay(state)
    reason = f"the spec asks for tensor parallel size {policy.tensor} now"
    return ask(state, names, policy.preflight, reason, now, bars=True)


def misfits_in_words(state: JobState) -> str:
    """Who gets no ranks under this spec, why, and what to do; empty when everybody suits."""
    misfits, avoided = state.fit.misfits, state.avoided_nodes
    there = ((name, state.member(name)) for name in misfits)
    out = (name for name, each in there if each and each.standing is Standing.TESTING and each.node not in avoided)
    names = list(islice((name for name in out if name not in state.trials), NAMED))
    if not names:
        return ""
    rest = f" and {len(misfits) - NAMED} more" if len(misfits) > len(names) == NAMED else ""
    says = "; ".join(dict.fromkeys(misfits[name] for name in names))
    return f"no ranks for {in_words(names)}{rest}: {says}; {REMEDY}"


def _told(state: JobState, member: Member, says: str, now: float) -> Step:
    """An incident without a culprit: neither the node nor anything on it is to blame."""
    told = f"{says} ({member.name} on node {member.node}); {REMEDY}"
    finding = Finding(
        kind=FindingKind.SELF_TEST,
        subject=Subject(state.job),
        cause=says,
        evidence=(Evidence(f"self-test of {member.name}", says, now),),
        confidence=Confidence.UNKNOWN,
        began_at=now,
        error=told,
    )
    state, incident, opened = open_incident(state, finding, now)
    state = changed(state, fit=msgspec.structs.replace(state.fit, incident=incident.id))
    state, acted = act(state, (incident.id,), Action(Rung.PAGE, now, f"paged: {told}", told))
    waits = "its members get no ranks under this spec; nothing is held against their nodes"
    state, closed = close(state, IncidentState.PAGED, now, waits, only=incident.id)
    return Step(state, (opened, *acted, *closed, Notify(incident.id, told)), Reason("page", told))
