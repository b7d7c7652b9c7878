"""What an intervention would do now, in words: the brain is asked, and what it says is not applied.

The same brain on the same state decides it, so the forecast is what would happen if it were asked for at this
moment. Where a checkpoint would be waited for first, the brain is asked a second time as if that had been
committed. What others then do (a member that joins, a worker that fails to restore) is not foretold.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from holdfast.api.event import CheckpointRecorded, InterventionRequested
from holdfast.api.intervention import Forecast, InterventionRequest, InterventionState
from holdfast.api.plan import NodeOrder, Plan
from holdfast.api.round import Closed, Entry, Idle, Restore, Round, Tier
from holdfast.watchdog.brain.selftests import takes
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.step import (
    FAILED_RULE,
    Answered,
    Brain,
    Effect,
    Examine,
    IncidentClosed,
    Notify,
    Pardon,
    Publish,
    Save,
    Show,
    Step,
    TakeProfile,
    turn,
)
from holdfast.watchdog.wording import in_words, ranks_in_words

ASKED: Final = "dry-run"  # no intervention is called this: an object's name has a generated end


def forecast(brain: Brain, state: JobState, request: InterventionRequest, now: float) -> Forecast:
    """What would become of `request`, and what else would happen. Pure: `state` is the caller's, and unchanged."""
    asked = msgspec.structs.replace(request, id=ASKED)
    step = turn(brain, state, InterventionRequested(asked), now)
    if step.reason.rule == FAILED_RULE:
        return Forecast(InterventionState.REFUSED, step.reason.says)
    told = list(_told(state, step, saved=None))
    verdict, says = _verdict(step.effects) or (InterventionState.PENDING, "")
    if step.state.asked is not None and step.state.asked.id == ASKED:
        says = f"goes back to {step.state.asked.says}; answered with what was restored, once it is"
    saving = step.state.saving
    if saving is not None and saving.saved is None and verdict is not InterventionState.REFUSED:
        if state.saving is not None and state.saving.saved is None:
            told.append("the checkpoint that is being waited for already serves this as well")
        uri = state.policy.checkpoint_uri if state.policy is not None else ""
        committed = 1 + max(state.step or 0, state.high_step)
        then = turn(brain, step.state, CheckpointRecorded(saving.round, committed, uri, saving.number), now)
        told += [f"once it is committed: {each}" for each in _told(step.state, then, saved=committed)]
        if verdict is InterventionState.PENDING:
            says = "answered as Done once that checkpoint is committed"
    return Forecast(verdict, says, tuple(told) or ("nothing else changes now",))


def _verdict(effects: Iterable[Effect]) -> tuple[InterventionState, str] | None:
    """What the request is answered, None while it waits."""
    outcomes = (each.outcome for each in effects if isinstance(each, Answered))
    return next(((each.state, each.outcome) for each in outcomes if each.id == ASKED), None)


def _told(before: JobState, step: Step, *, saved: int | None) -> Iterator[str]:
    """Each effect in words. `saved` is the step of a checkpoint that was only supposed to be committed."""
    for effect in step.effects:
        match effect:
            case Show(desired=Round() as round_):
                yield from _round(before, round_, saved)
            case Show(desired=Idle(reason=reason)):
                yield f"training stops and the members wait: {reason}"
            case Show(desired=Closed(succeeded=succeeded, reason=reason)):
                yield f"the job ends as {'Succeeded' if succeeded else 'Failed'}: {reason}"
            case Publish(plan=plan):
                yield from _plan(before.plan, plan)
            case Save(wanted=wanted):
                yield f"round {wanted.round} is asked for one more checkpoint, which is waited for first"
            case Examine(member=member, wanted=test):
                yield f"member {member} runs the {test.level.value} self-test of its devices, {takes(test.level)}"
            case TakeProfile(ranks=ranks, steps=steps):
                yield f"{steps} steps of {ranks_in_words(ranks)} are recorded, and take longer meanwhile"
            case IncidentClosed(incident=incident):
                yield f"incident {incident.id} is closed as {incident.state.value}"
            case Notify(text=text):
                yield f"a human is called: {text}"
            case Pardon(node=node):
                yield f"nothing that happened on node {node} so far is held against it any more, by any job"
            case _:
                pass


def _round(before: JobState, after: Round, saved: int | None) -> Iterator[str]:
    old = before.ranked()
    came, went = in_words(after.names - old), in_words(old - after.names)
    moves = ", ".join(each for each in (f"in: {came}" if came else "", f"out: {went}" if went else "") if each)
    size = f"{len(after.ranks)} members, world size {after.world_size}"
    yield f"round {after.number}: {size}" + (f" ({moves})" if moves else "")
    if after.entry is Entry.RESPAWN:
        yield "every worker starts as a new process"
    elif after.fresh_ranks:
        yield f"{ranks_in_words(after.fresh_ranks)} starts as a new process, the others re-enter"
    else:
        yield "the workers re-enter in their processes"
    yield _restored(after.restore, saved)


def _restored(restore: Restore, saved: int | None) -> str:
    is_stored = restore.tier is Tier.CHECKPOINT
    place = f"the checkpoints at {restore.uri}" if is_stored else "the memory of the nodes"
    match restore.tier:
        case Tier.NONE:
            says = "it starts from the beginning, whatever is saved"
        case Tier.PEER:
            says = "it copies its state from a replica group that trains"
        case _ if saved is not None and restore.step == saved:
            says = "it restores the checkpoint that was just committed"
        case _ if restore.step is not None:
            says = f"it restores step {restore.step} from {place}"
        case _:
            says = f"it restores the newest step there is in {place}"
    if restore.skip_batches:
        says += f" and passes over {restore.skip_batches} batches"
    if restore.learning_rate_scale != 1.0:
        says += f", with the learning rate times {restore.learning_rate_scale:g}"
    return says


def _plan(before: Plan | None, after: Plan) -> Iterator[str]:
    """What the operator is to do that it was not to do before."""
    old = before if before is not None else Plan(after.job, 0, members=0, spares=0)
    if (after.members, after.spares) != (old.members, old.spares):
        more = after.members + after.spares - old.members - old.spares
        pods = f"{abs(more)} pods are" if abs(more) > 1 else "1 pod is"
        change = "" if more == 0 else f": {pods} {'added' if more > 0 else 'removed'}"
        yield (
            f"{after.members} members and {after.spares} spares are wanted, "
            f"in place of {old.members} and {old.spares}{change}"
        )
    for what, new, known in (
        ("is cordoned", after.cordon, old.cordon),
        ("gets no more pods of this job", after.avoid, old.avoid),
    ):
        if names := _nodes(new) - _nodes(known):
            yield f"node {in_words(names)} {what}"
    if names := _nodes(old.avoid) - _nodes(after.avoid):
        yield f"node {in_words(names)} may get pods of this job again"
    if released := set(after.release) - set(old.release):
        yield f"the pods of {in_words(released)} are removed"


def _nodes(orders: Iterable[NodeOrder]) -> set[str]:
    return {order.node for order in orders}
