"""Members that are gone: whoever had ranks is healed, of the others the operator hears."""

import msgspec

from holdfast.api.event import Event, FindingMade
from holdfast.api.finding import Confidence, Finding, FindingKind, Subject
from holdfast.api.status import JobPhase
from holdfast.watchdog.absence import missed
from holdfast.watchdog.effect import Dismiss
from holdfast.watchdog.healing import heal, members_of, seen_again
from holdfast.watchdog.roster import Standing
from holdfast.watchdog.state import JobState
from holdfast.watchdog.step import Reason, Step, ignore, stay
from holdfast.watchdog.trial import without_members
from holdfast.watchdog.wording import in_words


def lost(state: JobState, finding: Finding, now: float) -> Step:
    """One member is gone, or many at once.

    Who is there is a level, not an event of a round: a loss counts whichever round it was seen in. A launcher that
    was only silent is told so: its connection stands, and it would wait for ever to be shown its part.
    """
    named = members_of(finding)
    members = ((name, state.member(name)) for name in named)
    news = {name for name, member in members if member is None or member.standing is not Standing.LOST}
    if not news:
        return seen_again(state, finding, now)
    ranked = {name for name in news if state.in_round(name)} if state.phase is not JobPhase.SUSPENDED else set()
    step = rankless_lost(state, _about(finding, news - ranked), now) if news - ranked else stay(state)
    step = step.then(lambda after: heal(after, _about(finding, ranked), now)) if ranked else step
    return step.prefixed((Dismiss(tuple(sorted(news)), finding.cause),))


def rankless_lost(state: JobState, finding: Finding, now: float) -> Step:
    """Members without ranks went: the operator replaces them, the round does not notice."""
    named = members_of(finding)
    gone = {name for name in named if name in state.members}
    if not gone:
        return ignore(state, f"{in_words(named)} is not a member")
    state = missed(state, sorted(gone), now)
    says = f"{in_words(gone)} ran no ranks: {finding.cause}"
    return Step(without_members(state, gone), (), Reason("member lost", says))


def lost_after_the_end(state: JobState, event: Event, now: float) -> Step:
    """A failed job heals nothing, but a Restart must not count on members that went."""
    assert isinstance(event, FindingMade)
    if event.finding.kind is not FindingKind.MEMBER_LOST:
        return ignore(state, "the job is over")
    told = Dismiss(members_of(event.finding), event.finding.cause)
    return rankless_lost(state, event.finding, now).prefixed((told,))


def _about(finding: Finding, names: set[str]) -> Finding:
    """The finding as far as it is about these members; of one alone, it is that member's loss."""
    if not finding.also:
        return finding
    subjects = tuple(each for each in (finding.subject, *finding.also) if each.member in names)
    if len(subjects) == 1:
        return msgspec.structs.replace(finding, subject=subjects[0], also=(), confidence=Confidence.PROBABLE)
    return msgspec.structs.replace(finding, subject=Subject(finding.subject.job), also=subjects)
