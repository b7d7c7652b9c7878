"""Tests of the links between nodes: asked of all members before the first round, and what their answers say.

Each member's part is a self-test that bars it, with the same patience and the same end: a round is formed once all
have answered, or have had their time. One member leads. A lead that is gone, or silent, is asked no more: another
one leads the next try, and after a few tries the job begins without a test, for one that waits for ever is worse.

A node whose every link is bad is left out, as one is that fails a test of its own. A bad link between two sound
nodes is told as a link, and nobody leaves: its traffic may have another way, and each node may be innocent.
"""

from collections.abc import Iterable
from hashlib import blake2b

from msgspec.structs import replace

from holdfast.api.event import MemberTested
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import XidAction
from holdfast.api.selftest import Judged, LinkTest, TestLevel, Verdict
from holdfast.api.xid import Recovery
from holdfast.watchdog.brain.roster import Member, MemberState
from holdfast.watchdog.brain.selftests import admitted, in_order, wanted_of
from holdfast.watchdog.brain.state import JobState, LinksTested, Trial
from holdfast.watchdog.brain.step import Effect, Examine, Reason, Step, changed

CAUSE = "link test failed"
WHY = "links between nodes, before the first round"
# A lead that dies costs its limit; the second one that does is no chance.
LEADS_MAX = 2
# Of one test: what all of a fleet's links have is told in words.
FINDINGS_MAX = 16


def links_due(state: JobState, nodes: Iterable[str]) -> tuple[str, ...]:
    """Names of the members that test their links before `nodes` are given the ranks of the first round: all that
    are there, spares too. None when that is done, or was tried in vain.
    """
    policy = state.policy
    if policy is None or policy.links is None or state.round is not None or len(state.links.led) >= LEADS_MAX:
        return ()
    there = state.eligible()
    if len(there) < 2 or set(nodes) <= set(state.links.nodes):
        return ()
    return tuple(each.name for each in there)


def links_under_way(state: JobState) -> bool:
    """Whether links are being tested; no round is formed of those who are through before the others."""
    return any(each.links is not None for each in state.trials.values())


def ask_for_links(state: JobState, names: tuple[str, ...], now: float) -> Step:
    """Ask members to test the links between them."""
    assert state.policy is not None
    assert state.policy.links is not None
    wanted, number = state.policy.links, state.trial_count + 1
    members = [each for name in names if (each := state.member(name)) is not None]
    lead = next((each for each in members if each.name not in state.links.led), members[0])
    part = LinkTest(
        token=_token(state, members, number),
        host=lead.address,
        port=lead.ports[number % len(lead.ports)],
        flow_s=wanted.flow_s,
        gang_s=wanted.gang_s,
        limit_s=wanted.timeout_s,
    )
    parts = dict.fromkeys(names, part)
    parts[lead.name] = replace(part, leads=True, members=names)
    trials = {
        name: Trial(name, number, TestLevel.LIGHT, WHY, now, bars=True, began=now, links=each)
        for name, each in parts.items()
    }
    after = changed(
        state,
        trials=in_order({**state.trials, **trials}),
        trial_count=number,
        members=state.members.standing(names, MemberState.TESTING),
        links=replace(state.links, led=(*state.links.led, lead.name), excused=()),
    )
    effects: tuple[Effect, ...] = tuple(Examine(name, wanted_of(after, each)) for name, each in trials.items())
    says = f"{len(members)} members test the links between them, {lead.name} leads"
    return Step(after, effects, Reason("link test", says))


def _token(state: JobState, members: Iterable[Member], number: int) -> str:
    """What only the members of this test know: made of what each launcher told the watchdog alone."""
    known = "/".join([state.incarnation, str(number), *(each.boot for each in members)])
    return blake2b(known.encode(), digest_size=16).hexdigest()


def answered(state: JobState, trial: Trial, event: MemberTested, now: float) -> tuple[Step, tuple[Finding, ...]]:
    """A member's part is over: what is known then, and what was found, if it is the lead that answers.

    A member that came to nobody has FAILED to; Unknown is the answer of one that had a reason not to come.
    """
    part, judged = trial.links, event.links
    assert part is not None
    state = admitted(state, trial.member, now)
    if part.leads:  # the test is over for all
        for other in [each.member for each in state.trials.values() if each.number == trial.number]:
            state = admitted(state, other, now)
    if judged is None or not part.leads:
        links = state.links
        if event.verdict is Verdict.UNKNOWN:
            links = replace(links, excused=(*links.excused, trial.member))
        does = "lead the test of links" if part.leads else "test its links"
        says = f"{trial.member} could not {does}: {event.says or 'no reason given'}"
        if event.verdict is Verdict.PASSED or (judged is not None):
            says = f"{trial.member} has tested its links"
        return Step(changed(state, links=links), (), Reason("link test", says)), ()
    found = _findings(state, trial, judged, now)
    bad: dict[str, str] = {}
    for finding in found:
        subject = finding.subject
        told = f"{subject}: {finding.error}"
        bad.update({node: told for node in (subject.node, subject.peer) if node is not None})
    there = (each.node for name in part.members if (each := state.member(name)) is not None)
    nodes = tuple(dict.fromkeys((*state.links.nodes, *there)))
    after = changed(state, links=LinksTested(nodes, (), judged.says, bad))
    return Step(after, (), Reason("link test", f"{judged.verdict}: {judged.says}")), found


def _findings(state: JobState, trial: Trial, judged: Judged, now: float) -> tuple[Finding, ...]:
    """What the lead has found, of members of its test alone."""
    assert trial.links is not None
    among = {name: each for name in trial.links.members if (each := state.member(name)) is not None}
    absent = [name for name in judged.absent if name not in state.links.excused]
    bad = {**dict.fromkeys(absent, "did not reach the member that led the test"), **judged.nodes}
    found = [
        _finding(trial, Subject(state.job, node=among[name].node, member=name), says, now)
        for name, says in bad.items()
        if name in among
    ]
    for link in judged.links:
        one, other = among.get(link.one), among.get(link.other)
        if one is not None and other is not None and one.node != other.node:
            subject = Subject(state.job, node=one.node, member=one.name, peer=other.node)
            found.append(_finding(trial, subject, link.says, now))
    return tuple(found[:FINDINGS_MAX])


def _finding(trial: Trial, subject: Subject, says: str, now: float) -> Finding:
    """Compared with the others of one moment, it is likely and no proof. A node leaves for it, no link does."""
    return Finding(
        kind=FindingKind.SELF_TEST,
        subject=subject,
        cause=CAUSE,
        evidence=(Evidence(f"link test led by {trial.member}", says, now),),
        confidence=Confidence.PROBABLE,
        began_at=now,
        error=says,
        asks=XidAction.WATCH if subject.peer is not None else XidAction.EVICT,
        remedy=Recovery.NOTHING,
    )
