"""Self-tests in the gap between a round that broke and the next one, when nobody's devices have anything to do.

Training goes first: a launcher ends such a test as soon as a round gives its member ranks. So they are asked for
only where no round can follow at once, of a bounded number of members, those that were tested longest ago first.
"""

from heapq import nsmallest

from holdfast.api.policy import Policy
from holdfast.api.round import Idle, Round
from holdfast.api.selftest import TestLevel
from holdfast.watchdog.state import JobState, Recovery
from holdfast.watchdog.step import Step, stay
from holdfast.watchdog.trial import ask

# At each gap; however large the job, its next round is not kept waiting for the requests.
ASKED_MAX = 64
# How long a light test takes at most: in a shorter pause it would only be ended.
LIGHT_S = 60.0


def used(before: JobState, state: JobState, policy: Policy, now: float) -> Step:
    """In the turn in which a gap begins: ask members that keep their ranks for a light test."""
    begins = isinstance(before.desired, Round) and isinstance(state.desired, Idle)
    recovery = state.recovery
    if not begins or policy.preflight is None or recovery is None or not _is_long(recovery, now):
        return stay(state)
    latest = now - policy.corruption.self_test_every_s
    tested_at, avoided, trials = state.tested_at, state.avoided_nodes, state.trials
    stayed = (state.members.by_name[name] for name in state.members.stayed(state.ranked(), state.round_shown_at))
    idle = ((tested_at.get(each.node, 0.0), each) for each in stayed if each.name not in trials)
    due = ((at, each.name) for at, each in idle if at <= latest and each.node not in avoided)
    names = tuple(name for _, name in nsmallest(ASKED_MAX, due))
    if not names:
        return stay(state)
    return ask(state, names, TestLevel.LIGHT, "the job waits for its next round", now, bars=False)


def _is_long(recovery: Recovery, now: float) -> bool:
    """Whether a fault's round waits for somebody, or backs off for as long as a test takes."""
    return bool(recovery.incidents) and not now < recovery.not_before < now + LIGHT_S
