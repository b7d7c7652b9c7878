"""Checkpoints asked of the round in force: for a planned change, because somebody wants one, or as one is due.

Of the faults those count that a checkpoint on storage was needed for: what memory heals loses next to nothing."""

from statistics import median

import msgspec

from holdfast.api.intervention import InterventionOutcome, InterventionState
from holdfast.api.membership import SaveWanted
from holdfast.api.round import Round
from holdfast.api.status import Cadence, JobPhase
from holdfast.planner.cadence import daly_s
from holdfast.watchdog.brain.state import JobState, Saving
from holdfast.watchdog.brain.step import NOTHING, Answered, Effect, Reason, Save, Step, changed, stay

KEPT_ANSWERS = 64
# A script that has never committed a checkpoint may not be able to: it is asked, and not waited for long.
FIRST_SAVE_S = 10.0
# One that takes long is waited for so many times longer than the longest of late took.
LONGER = 1.5


def in_force(state: JobState) -> bool:
    """Whether a round trains and nothing of it is broken."""
    return state.phase is JobPhase.RUNNING and state.recovery is None and isinstance(state.desired, Round)


def can_save(state: JobState) -> bool:
    """Whether the round's script speaks of checkpoints at all (it uses holdfast.trainer)."""
    return state.can_reenter()


def save_s(state: JobState) -> float:
    """How long a checkpoint is waited for: as the policy says, and longer where the job's own take longer."""
    if state.policy is None or not can_save(state):
        return 0.0
    if not state.checkpoints:
        return min(FIRST_SAVE_S, state.policy.save_grace_s)
    return max(state.policy.save_grace_s, LONGER * _took_s(state))


def cannot_save(state: JobState) -> str | None:
    """Why no checkpoint can be asked for now, None when one can."""
    if not in_force(state):
        return f"no round is training (the job is {state.phase.value}); ask again when it is Running"
    if not can_save(state):
        return "the script does not use holdfast.trainer, so nothing can be asked of it"
    return None


def ask_for_checkpoint(state: JobState, why: str, now: float, *, request: str | None = None) -> Step:
    """Ask for a checkpoint; one that is under way serves everybody. `request` is who wants to hear of it."""
    assert state.round is not None
    asked = (request,) if request is not None else ()
    if state.saving is not None and state.saving.saved is None:
        saving = msgspec.structs.replace(state.saving, asked=(*state.saving.asked, *asked))
        return stay(state) if not asked else Step(changed(state, saving=saving), (), Reason("save", why))
    number = state.save_count + 1
    saving = Saving(number, state.round.number, now, asked=asked)
    effect = Save(SaveWanted(state.round.number, number))
    return Step(changed(state, saving=saving, save_count=number), (effect,), Reason("save", f"checkpoint: {why}"))


def awaited(state: JobState, number: int | None) -> bool:
    """Whether a checkpoint other than that of request `number` is waited for."""
    saving = state.saving
    return saving is not None and saving.saved is None and saving.number != number


def saved(state: JobState, number: int | None, step: int) -> Step:
    """A checkpoint was committed, perhaps the one that is waited for."""
    saving = state.saving
    if saving is None or saving.number != number or saving.saved is not None:
        return stay(state)
    effects = _answers(saving, InterventionState.DONE, f"checkpoint of step {step} committed")
    done = msgspec.structs.replace(saving, saved=step, asked=())
    return Step(answered(changed(state, saving=done), saving.asked), effects, Reason("saved", f"step {step}"))


def conclude(state: JobState, says: str) -> Step:
    """Wait for the checkpoint no longer; who asked for one that did not come hears `says`."""
    saving = state.saving
    if saving is None:
        return stay(state)
    effects = _answers(saving, InterventionState.REFUSED, says)
    after = answered(changed(state, saving=None), saving.asked)
    return Step(after, effects, Reason("save", says) if saving.saved is None else NOTHING)


def answered(state: JobState, ids: tuple[str, ...]) -> JobState:
    """The state that remembers those interventions as answered."""
    return changed(state, answered=(*state.answered, *ids)[-KEPT_ANSWERS:]) if ids else state


def _answers(saving: Saving, outcome: InterventionState, says: str) -> tuple[Effect, ...]:
    return tuple(Answered(InterventionOutcome(each, outcome, says)) for each in saving.asked)


SECONDS_PER_DAY = 86_400.0

# Failures per node and day before anything was seen of this job.
# Source: 6.50 per 1,000 node-days, https://arxiv.org/abs/2410.21680 (section III, RSC-1)
NODE_FAILURES_PER_DAY = 6.50e-3

# The first one comes soon: it is something to fall back to, and tells what one costs.
FIRST_S = 60.0
LEAST_S = 60.0
MOST_S = 3600.0  # also what an estimate that is wrong may cost at most
COSTS_LOOKED_AT = 5


def pace(state: JobState, now: float) -> Step:
    """Ask for a checkpoint when one is due."""
    cadence = _cadence_now(state)
    if cadence is None:
        return stay(state)
    if cadence.every_s is not None:
        is_due = now >= _last_at(state) + cadence.every_s
    elif cadence.steps is None or (state.round is not None and state.round.save_every == cadence.steps):
        is_due = False  # its ranks were told, and save after exactly these steps
    else:
        # Where the round began says nothing: memory has it begin far from what storage has. With nothing on
        # record, as after an earlier life of the job, one comes at once; one that was asked for in vain, not soon
        # again.
        newest, asked_at = state.checkpoints[-1] if state.checkpoints else None, _asked_at(state)
        is_reached = state.step is not None and state.step >= (newest.step if newest else 0) + cadence.steps
        unanswered = asked_at > 0.0 and not (newest is not None and newest.at >= asked_at)
        is_due = is_reached and now >= asked_at + (MOST_S if unanswered else 0.0)
    if not is_due:
        return stay(state)
    asked = ask_for_checkpoint(state, f"due {cadence.says}", now)
    return Step(changed(asked.state, paced_at=now), asked.effects, asked.reason)


def next_due(state: JobState) -> float | None:
    """When time alone makes one due, None when it does not."""
    cadence = _cadence_now(state)
    return _last_at(state) + cadence.every_s if cadence is not None and cadence.every_s is not None else None


def _cadence_now(state: JobState) -> Cadence | None:
    """The cadence that counts, None where no checkpoint may be asked for."""
    return cadence_of(state) if in_force(state) and state.saving is None and can_save(state) else None


def cadence_of(state: JobState) -> Cadence | None:
    """How far apart checkpoints are to be and why, None where the script alone says."""
    policy = state.policy
    if policy is None or policy.interval is None:
        return None
    if policy.interval.steps is not None:
        return Cadence(f"every {policy.interval.steps} steps, as the spec says", steps=policy.interval.steps)
    if policy.interval.seconds is not None:
        return Cadence(f"every {policy.interval.seconds:.0f} s, as the spec says", every_s=policy.interval.seconds)
    if not state.checkpoints:
        every_s = MOST_S if _asked_at(state) else FIRST_S
        return Cadence(f"after {every_s:.0f} s: what one costs is not known yet", every_s=every_s)
    return _optimum(state)


def _optimum(state: JobState) -> Cadence:
    stalls = [each.stall_s for each in state.checkpoints[-COSTS_LOOKED_AT:] if each.stall_s is not None]
    if not stalls:
        return Cadence(f"every {MOST_S:.0f} s: the script does not tell what one costs", every_s=MOST_S)
    cost_s, nodes = median(stalls), len(state.round.ranks) if state.round else 1
    newest_at = state.checkpoints[-1].at
    seen_s = newest_at - (state.ledger.first_round_at or newest_at) - state.ledger.held_s
    per_day = state.node_failures_per_day
    apart_s = between_failures_s(nodes, state.storage_restores, seen_s, per_day or NODE_FAILURES_PER_DAY)
    took_s = _took_s(state)
    best_s = daly_s(cost_s, apart_s)
    every_s = min(max(best_s, LEAST_S, 2.0 * took_s), MOST_S)
    says = (
        f"every {every_s:.0f} s: one costs {cost_s:.3g} s, and {nodes} nodes need one every {apart_s / 3600:.3g} h"
        f" ({state.storage_restores} needed so far"
        f"{'' if per_day is None else f'; a node of the fleet fails every {1.0 / per_day:.3g} days'}"
        f"), for which {best_s:.0f} s is best"
    )
    return Cadence(says, every_s=every_s)


def _took_s(state: JobState) -> float:
    """The longest that one of the last checkpoints took until it was committed, 0 where that is not told."""
    return max((each.took_s or 0.0 for each in state.checkpoints[-COSTS_LOOKED_AT:]), default=0.0)


def _last_at(state: JobState) -> float:
    """When the last checkpoint was committed, or asked of this round in vain; the first round's begin without one.

    A new round does not put it off: where rounds are shorter than the interval, none would ever be due.
    """
    known = max(_asked_at(state), state.checkpoints[-1].at if state.checkpoints else 0.0)
    return known or state.ledger.first_round_at or state.round_shown_at


def _asked_at(state: JobState) -> float:
    """When this round was last asked because one was due, 0 when it was not: an earlier round could not answer."""
    return state.paced_at if state.paced_at >= state.round_shown_at else 0.0


def between_failures_s(nodes: int, failures: int, seen_s: float, per_day: float = NODE_FAILURES_PER_DAY) -> float:
    """The mean time between failures that a known rate and `failures` in `seen_s` together suggest.

    The rate, `per_day` and node, is the fleet's own where it is known, and counts as one failure in its own mean
    time: it decides at first and hardly matters after a few.
    """
    expected_s = SECONDS_PER_DAY / (per_day * max(1, nodes))
    return (expected_s + max(0.0, seen_s)) / (1 + failures)
