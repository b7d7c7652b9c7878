"""One more checkpoint, asked of the round in force: for a planned change, or because somebody wants one."""

import msgspec

from holdfast.api.intervention import InterventionOutcome, InterventionState
from holdfast.api.membership import SaveWanted
from holdfast.api.round import Round
from holdfast.api.status import JobPhase
from holdfast.watchdog.effect import Answered, Effect, Save
from holdfast.watchdog.state import JobState, Saving
from holdfast.watchdog.step import NOTHING, Reason, Step, changed, stay

KEPT_ANSWERS = 64
# A script that has never committed a checkpoint may not be able to: it is asked, and not waited for long.
FIRST_SAVE_S = 10.0


def in_force(state: JobState) -> bool:
    """Whether a round trains and nothing of it is broken."""
    return state.phase is JobPhase.RUNNING and state.recovery is None and isinstance(state.desired, Round)


def can_save(state: JobState) -> bool:
    """Whether the round's script speaks of checkpoints at all (it uses holdfast.trainer)."""
    return state.can_reenter()


def save_s(state: JobState) -> float:
    """How long a checkpoint is waited for."""
    if state.policy is None or not can_save(state):
        return 0.0
    return state.policy.save_grace_s if state.checkpoints else min(FIRST_SAVE_S, state.policy.save_grace_s)


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
