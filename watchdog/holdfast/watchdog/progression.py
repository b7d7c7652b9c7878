"""How far the job is: steps completed, checkpoints committed, state restored."""

from holdfast.api.event import CheckpointRecorded, Event, RestoreReported, RoundProgressed
from holdfast.api.incident import IncidentState
from holdfast.api.round import Tier
from holdfast.api.status import Checkpoint, JobPhase
from holdfast.watchdog.casebook import close, count_loss, healed_by, note
from holdfast.watchdog.corruption import is_verified, lowered, vouch
from holdfast.watchdog.formation import GROWTH, can_grow
from holdfast.watchdog.nonfinite import is_healthy, still_unhealthy
from holdfast.watchdog.rewinding import came_to, up_to, with_commit
from holdfast.watchdog.saving import awaited, saved
from holdfast.watchdog.state import JobState, Recovery
from holdfast.watchdog.step import Reason, Step, changed, ignore

KEPT_CHECKPOINTS = 16
PROGRESS = "progress"  # the rule of a step that is one of many


def progressed(state: JobState, event: Event, now: float) -> Step:
    """Every rank completed a step of the newest round. The first one is what ends incidents."""
    assert isinstance(event, RoundProgressed)
    if state.round is None or event.round != state.round.number:
        return ignore(state, f"round {event.round} is over")
    if state.recovery is not None and state.recovery.incidents:
        return ignore(state, "a fault was found in this round after that step")
    at = event.completed_at if event.completed_at is not None else now - event.age_s
    after = _reached(state, event.step, at)
    if state.progressed and state.step is not None:
        return Step(after, (), Reason(PROGRESS, f"step {event.step}"))
    return _began(after, event.round, at)


def _began(state: JobState, round_number: int, at: float) -> Step:
    """The newest round has completed its first step: what it was meant to heal is healed."""
    state, lost = count_loss(state, round_number)
    says = f"recovered: first new step complete in round {round_number}"
    state, closed = close(state, IncidentState.RECOVERED, at, says, stepped=True)
    state = changed(state, progressed=True, phase=JobPhase.RUNNING, reason=f"training in round {round_number}")
    return Step(state, lost + closed, Reason("first step", f"step {state.step} of round {round_number}"))


def checkpointed(state: JobState, event: Event, now: float) -> Step:
    """A checkpoint was committed. One of an older round was fenced by the store and is no news here."""
    assert isinstance(event, CheckpointRecorded)
    if state.round is None or event.round != state.round.number:
        return ignore(state, f"round {event.round} is over: its checkpoint does not count")
    if state.rewind is not None and state.rewind.round is None:
        return ignore(state, f"step {event.step} is of what is to be rewound")
    newest = state.checkpoints[-1] if state.checkpoints else None
    if newest is not None and newest.round == event.round and event.step <= newest.step:
        step = saved(state, event.wanted, event.step)  # a regular checkpoint may have been quicker
        says = f"step {event.step} is on record or older than what is"
        return ignore(state, says) if step.state is state else step
    earlier = tuple(each for each in state.checkpoints if each.step < event.step)
    checkpoint = Checkpoint(event.step, event.uri, event.round, now, event.stall_s, event.took_s)
    kept = _bounded(state, (*earlier, checkpoint))
    # What every rank has saved, every rank has completed. A rewind has done its work once it is saved.
    after = _reached(state, event.step, state.ledger.reached_at(event.step, now))
    storage = with_commit(state.storage, event)
    after = changed(after, checkpoints=kept, storage=storage, rewind=None, ledger=after.ledger.saved(event.step))
    grows = after.phase is JobPhase.RUNNING and after.recovery is None and can_grow(after)
    if grows and not awaited(after, event.wanted):
        after = changed(after, recovery=Recovery(reason=GROWTH))
    vouched = vouch(after)
    step = Step(after, (vouched,) if vouched else (), Reason("checkpoint", f"step {event.step} committed"))
    step = step.then(lambda known: saved(known, event.wanted, event.step))
    broken = after.recovery is not None and after.recovery.incidents
    stepped = after.progressed and state.step is not None
    return step if stepped or broken else step.then(lambda done: _began(done, event.round, now))


def restored(state: JobState, event: Event, now: float) -> Step:
    """Where the round truly began. Checkpoints it passed over were damaged and are forgotten; who asked for it to
    go back is told.
    """
    assert isinstance(event, RestoreReported)
    if state.round is None or event.round != state.round.number:
        return ignore(state, f"round {event.round} is over")
    if state.restored_step is not None:
        return ignore(state, f"round {event.round} reported its restore before")
    step = event.step or 0
    kept = tuple(each for each in state.checkpoints if each.step <= step)
    # A planned change has none of the faults that storage is for.
    needed = event.tier is not Tier.MEMORY and bool(healed_by(state, event.round))
    after = changed(
        state,
        checkpoints=kept,
        storage=up_to(state.storage, step),
        restored_step=step,
        publishes=True,
        ledger=state.ledger.back_to(step),
        verified_step=lowered(state.verified_step, event.step),
        unhealthy_from=still_unhealthy(state, event.step),
        storage_restores=state.storage_restores + needed,
    )
    says = f"round {event.round} begins after step {step}"
    if event.tier is Tier.MEMORY:
        says += ", from memory"
    if event.skipped:
        says += f"; passed over {'; '.join(event.skipped)}"
    if event.healed:
        says += f"; healed {'; '.join(event.healed)}"
    after, effects = note(after, event.round, now, says)
    return Step(after, effects, Reason("restored", says)).then(lambda known: came_to(known, event))


def _bounded(state: JobState, known: tuple[Checkpoint, ...]) -> tuple[Checkpoint, ...]:
    """The newest ones; before them the newest that is verified and the newest that is healthy, which a rewind may
    need.
    """
    newest, older = known[-KEPT_CHECKPOINTS:], known[:-KEPT_CHECKPOINTS]
    needed = {
        each.step: each
        for holds in (is_verified, is_healthy)
        if not holds(state, newest[0])
        for each in [each for each in older if holds(state, each)][-1:]
    }
    return (*(needed[step] for step in sorted(needed)), *newest)


def _reached(state: JobState, step: int, at: float) -> JobState:
    """Every rank of the newest round has completed `step`, at `at` or before.

    Trained again is not progress: only a step beyond every earlier one forgives the failures before it.
    """
    return changed(
        state,
        step=max(step, state.step or 0),
        high_step=max(step, state.high_step),
        publishes=True,
        ledger=state.ledger.step(step, at),
        failures=() if step > state.high_step else state.failures,
    )
