"""Going back on request: what storage holds, which of it is restored, and what came of it.

The list is the storage's own. Rank 0 tells it when its round has restored and whenever old checkpoints were
deleted; between two tellings a commit adds to it, and a rewind or a restore takes away what was given up. A
request to go back is answered when the round that was sent back says what it has restored, and names that.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from holdfast.api.checkpoint import TOLD_MAX, Health, StoredCheckpoint, health_of, restore_order, told_of
from holdfast.api.event import CheckpointRecorded, Event, RestoreReported, StorageListed
from holdfast.api.intervention import InterventionOutcome, InterventionState
from holdfast.api.round import Round
from holdfast.watchdog.brain.groups import counts_in
from holdfast.watchdog.brain.saves import answered
from holdfast.watchdog.brain.state import JobState, RewindAsked, Storage
from holdfast.watchdog.brain.step import Answered, Reason, Step, changed, ignore, stay

STEPS_NAMED = 12
"""How many checkpoints a sentence names; of more, the newest and the oldest."""


class Target(msgspec.Struct, frozen=True):
    """Where a round is sent back to: the newest checkpoint not after `step`. `says` is what is expected to be
    restored and why, in words, as of what was told of the storage. Where nothing was told of at or before `step`,
    storage itself may hold something all the same; `otherwise` is then the step to go on from when it does not.
    """

    step: int
    says: str
    why: str = ""
    otherwise: int | None = None


def listed(state: JobState, event: Event, now: float) -> Step:
    """Rank 0 told what storage holds of the history that its round goes on with."""
    assert isinstance(event, StorageListed)
    if state.round is None or not counts_in(state.round, event.round):
        return ignore(state, f"round {event.round} is over")
    if state.rewind is not None and state.rewind.round is None:
        return ignore(state, f"what round {event.round} goes on with is to be given up")
    storage = Storage(event.checkpoints[::-1], event.count, event.uri, event.round, now)
    says = f"{event.count} checkpoints are in storage"
    return Step(changed(state, storage=storage), (), Reason("storage", says))


def known_checkpoints(state: JobState) -> tuple[StoredCheckpoint, ...]:
    """The checkpoints of the history that goes on, oldest first, as storage was told to hold them. Of a script
    that does not tell: what it said it has committed.
    """
    if state.storage is not None:
        return state.storage.checkpoints
    return tuple(StoredCheckpoint(each.step, each.round, each.uri) for each in state.checkpoints)


def final_step(state: JobState) -> int | None:
    """The newest step that is final: no remedy taken without a human goes back behind it. None while none is.

    It is that of the newest checkpoint that any remedy would still restore: committed, finite on all ranks, not
    after what was verified where anything was, and old enough for a loss that stays high to have shown. While the
    job is sent back it is what the next round restores, if that is older. A human may ask for an older one, and
    the newest may turn out to be damaged: who publishes steps is then told by the round that goes back.
    """
    limits = [state.high_step]
    if state.verified_step is not None:
        limits.append(state.verified_step)
    if state.unhealthy_from is not None:
        limits.append(state.unhealthy_from - 1)
    if state.policy is not None and state.policy.loss is not None:
        limits.append((state.step or 0) - state.policy.loss.rewind_after)
    if state.rewind is not None:
        limits.append(state.rewind.restore.step or 0)
    steps = [each.step for each in known_checkpoints(state) if each.step <= min(limits)]
    return max(steps, default=None)


def newest_step(state: JobState) -> int | None:
    """The step of the newest of them that a restore would take, None when there is none."""
    order = restore_order(known_checkpoints(state)[::-1], state.unhealthy_from)
    return order[0].step if order else None


def with_commit(storage: Storage | None, event: CheckpointRecorded) -> Storage | None:
    """What storage holds once a commit is on record; the next telling says how healthy it is, and what went."""
    if storage is None:
        return None
    older = tuple(each for each in storage.checkpoints if each.step < event.step)
    added = StoredCheckpoint(event.step, event.round, event.uri.rpartition("/")[2])
    replaced = len(storage.checkpoints) - len(older)
    line = told_of((*older, added)[::-1], TOLD_MAX)
    return msgspec.structs.replace(
        storage, checkpoints=tuple(line[::-1]), count=storage.count - replaced + 1, round=event.round
    )


def up_to(storage: Storage | None, step: int) -> Storage | None:
    """What is left of it for a history that goes on from `step`."""
    if storage is None or all(each.step <= step for each in storage.checkpoints):
        return storage
    kept = tuple(each for each in storage.checkpoints if each.step <= step)
    given_up = len(storage.checkpoints) - len(kept)
    return msgspec.structs.replace(storage, checkpoints=kept, count=storage.count - given_up)


def target(state: JobState, limit: int | None) -> Target | str:
    """Where a request to go back to `limit` (None: the newest) leads, or why it leads nowhere."""
    there, storage = known_checkpoints(state), state.storage
    count = storage.count if storage is not None else len(there)  # more than are there: not all were named
    unhealthy = [each.step for each in there if health_of(each, state.unhealthy_from) is Health.UNHEALTHY]
    below = [each for each in there if limit is None or each.step <= limit]
    order = restore_order(below[::-1], state.unhealthy_from)
    if not order:
        says = "there is no checkpoint"
        if there:
            says = f"there is {_in_words([each.step for each in there], count)}"
            says += f"; not healthy: {_in_words(unhealthy)}" if unhealthy else ""
        asked = "the newest" if limit is None else f"step {limit}"
        nothing = f"nothing that can be restored is at or before {asked}: {says}{_as_of(state)}"
        newest = newest_step(state)
        if not limit or newest is None or storage is None:
            return nothing
        # A checkpoint that people have put back is seen by whoever looks: nobody does before the next deletion.
        hope = f"what storage holds at or before step {limit}, if it does, else step {newest}"
        return Target(limit, f"{hope}; as far as was told, {nothing}", otherwise=newest)
    step = order[0].step
    if limit is None or step == limit:
        return Target(step, f"step {step}{_as_of(state)}")
    # Between the oldest, which is always named, and those that follow it there may be others.
    if order[0] is there[0] and count > len(there) and limit > there[0].step:
        says = f"the newest checkpoint at or before step {limit}, which is none of those that are named"
        return Target(limit, f"{says}{_as_of(state)}")
    passed = [each for each in unhealthy if step < each <= limit]
    if passed:
        why = f"not healthy: {_in_words(passed)}"
    else:
        first = step + 1
        why = f"{limit} is not in storage" if first == limit else f"nothing from {first} to {limit} is in storage"
    return Target(step, f"step {step} ({why}){_as_of(state)}", why)


def ask_to_go_back(state: JobState, id: str, limit: int | None, where: Target) -> Step:
    """The request is under way; one before it that was under way is answered."""
    step = give_up(state, "another request to go back took its place")
    asked = RewindAsked(id, where.step if limit is None else limit, where.step, where.says, where.why)
    reason = Reason("rewind", f"restoring {where.says}")
    return step.then(lambda after: Step(changed(after, asked=asked), (), reason))


def under_way(state: JobState, id: str) -> str | None:
    """How far the request is, None when it is not under way."""
    asked = state.asked
    if asked is None or asked.id != id:
        return None
    if asked.round is None:
        return f"under way: the next round is to restore {asked.says}"
    return f"under way: round {asked.round} is to restore {asked.says}"


def came_to(state: JobState, event: RestoreReported) -> Step:
    """A round has said what it restored: the request that sent it back is answered with that."""
    asked = state.asked
    if asked is None or asked.round is None or event.round < asked.round:
        return stay(state)
    did = "began afresh" if event.step is None else f"restored step {event.step}"
    reached = event.step or 0
    notes = [f"{asked.step} was asked for"] if reached != asked.step else []
    if reached > asked.step:
        notes += ["nothing that can be restored is at or before it"]
    if reached == asked.intended:
        notes += [asked.why] if asked.why and notes else []
    else:
        notes += [f"step {asked.intended} was intended"] if asked.intended != asked.step else []
        notes += [f"passed over {'; '.join(event.skipped)}"] if event.skipped else []
    says = f"round {event.round} {did}"
    if notes:
        says += f" ({'; '.join(notes)})"
    outcome = InterventionState.DONE if reached <= asked.step else InterventionState.REFUSED
    return _answer(state, outcome, says)


def give_up(state: JobState, says: str) -> Step:
    """Nobody will go back on that request any more; who asked hears `says`."""
    return stay(state) if state.asked is None else _answer(state, InterventionState.REFUSED, says)


def _answer(state: JobState, outcome: InterventionState, says: str) -> Step:
    assert state.asked is not None
    told = Answered(InterventionOutcome(state.asked.id, outcome, says))
    return Step(answered(changed(state, asked=None), (state.asked.id,)), (told,), Reason("rewind", says))


def _in_words(steps: Sequence[int], count: int = 0) -> str:
    """Steps in order; of many the oldest and the newest, and how many there are where not all are given."""
    count = max(count, len(steps))
    if count <= STEPS_NAMED and count == len(steps):
        return ", ".join(map(str, steps))
    newest = ", ".join(map(str, steps[-STEPS_NAMED // 2 :]))
    return f"{steps[0]}, ... {newest} ({count} in all)"


def _as_of(state: JobState) -> str:
    """As of when that is known, where nobody runs who would tell now."""
    if isinstance(state.desired, Round) or state.storage is None:
        return ""
    at = datetime.fromtimestamp(state.storage.at, UTC)
    return f", as round {state.storage.round} last told at {at:%Y-%m-%d %H:%M:%S}Z"
