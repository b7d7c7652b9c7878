"""Losses that no watchdog saw: what it finds when it is back was there before, and may be of its own making.

A host that is lost with the watchdog on it, an allocation that is queued again, a cluster without power: all
launchers of a job end for what happened to one of them, and come back as other processes or not at all. Nothing
tells then which node it was. Whoever came through tells: where a member of the round is still the process that it
was, the others went by themselves, and each is its own node's.
"""

import msgspec

from holdfast.api.finding import Confidence, Finding, Subject
from holdfast.watchdog.brain.roster import MemberState
from holdfast.watchdog.brain.state import JobState

CAUSE = "lost while no watchdog was there"


def nobodys(state: JobState, finding: Finding) -> Finding:
    """The loss of members with ranks as it is to be judged: of nobody's making, where all of them were lost while
    no watchdog was there and nobody of their round is known to have come through. Such losses are one incident.
    """
    lost = [each for each in (finding.subject, *finding.also) if each.member is not None]
    members = [state.member(each.member) for each in lost if each.member is not None]
    unseen = all(each is not None and each.standing is MemberState.UNKNOWN for each in members)
    if not unseen or state.members.stayed(state.ranked(), state.round_shown_at):
        return finding
    return msgspec.structs.replace(
        finding, subject=Subject(state.job), also=tuple(lost), cause=CAUSE, confidence=Confidence.UNKNOWN
    )
