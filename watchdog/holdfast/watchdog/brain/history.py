"""What of the job's history stands: steps complete, checkpoints committed and restored, verified, healthy.

Verified: replicas that were equal after a step were so after every earlier one, because a difference in parameters
never goes away by itself. So a checkpoint is verified when a later comparison, or one at its own step, found all
alike; what was saved since the last agreement may hold the error, and is not restored. Where no two ranks hold the
same, devices that answered right and memory that was not seen to change verify.

Healthy: a step is while no rank's loss or gradient norm at it, or at an earlier one of the same history, was known
not to be finite. Going back ends that history: what is trained from there on is judged anew.

Unseen: nobody can see the first new step of a script that publishes none, so that no time to recover is told and
no ETTR. That all its workers run is the first thing known of a round; that they run *steadily*, with the first
sign of training behind them, is the best evidence there is that a fault is healed. What came before that sign,
importing above all, proves nothing.
"""

from msgspec.structs import replace

from holdfast.api.checkpoint import restore_order
from holdfast.api.event import (
    CheckpointRecorded,
    Event,
    ReplicasAgreed,
    RestoreReported,
    RoundBegan,
    RoundProgressed,
    RunRecorded,
)
from holdfast.api.finding import Confidence, Finding, FindingKind, ProvedBy
from holdfast.api.incident import IncidentState
from holdfast.api.learningrate import LearningRateCut, cuts_from
from holdfast.api.membership import Verified
from holdfast.api.policy import Policy, XidAction
from holdfast.api.round import Follows, Restore, Round, Tier
from holdfast.api.status import Checkpoint, JobPhase
from holdfast.watchdog.brain.groups import counts_in
from holdfast.watchdog.brain.incidents import close, count_loss, healed_by, note
from holdfast.watchdog.brain.ledger import NO_PARTS, Parts
from holdfast.watchdog.brain.phases import Turn, moved
from holdfast.watchdog.brain.rewinds import came_to, known_checkpoints, up_to, with_commit
from holdfast.watchdog.brain.rounds import GROWTH, can_grow
from holdfast.watchdog.brain.saves import awaited, saved
from holdfast.watchdog.brain.state import Failure, JobState, Recovery, Rewind
from holdfast.watchdog.brain.step import Reason, Step, Vouch, changed, ignore, stay

KEPT_CHECKPOINTS = 16
KEPT_WENT_BACK = 16
KEPT_CUTS = 64  # of the learning rate: by a half each, it would have been nothing long before
PROGRESS = "progress"  # the rule of a step that is one of many
# From the first sign of training on: longer than a script takes to fail at its first batch.
STEADY_S = 10.0
# From the start of a round on, for workers that show no sign: twice the longest imports that were seen (60 s).
SILENT_STEADY_S = 120.0
# Going back so often within that time is no progress, whatever was saved in between.
REWINDS_THAT_PAGE = 3
REWINDS_WITHIN_S = 3600.0


def progressed(state: JobState, event: Event, now: float) -> Step:
    """Every rank completed a step of the newest round. The first one is what ends incidents."""
    assert isinstance(event, RoundProgressed)
    if state.round is None or event.round != state.round.number:
        return ignore(state, f"round {event.round} is over")
    if state.recovery is not None and state.recovery.incidents:
        return ignore(state, "a fault was found in this round after that step")
    at = event.completed_at if event.completed_at is not None else now - event.age_s
    after = _reached(state, event.step, at, Parts(event.data_us, event.checkpoint_us))
    if state.progressed and state.step is not None:
        return Step(after, (), Reason(PROGRESS, f"step {event.step}"))
    return _began(after, event.round, at)


def described(state: JobState, event: Event, now: float) -> Step:
    """Rank 0 told how it was started. It is on record; nothing follows from it."""
    assert isinstance(event, RunRecorded)
    says = f"round {event.round} was started as the journal says"
    return Step(changed(state, described=event.digest), (), Reason("described", says))


def _began(state: JobState, round_number: int, at: float) -> Step:
    """The newest round has completed its first step: what it was meant to heal is healed."""
    state, lost = count_loss(state, round_number)
    says = f"recovered: first new step complete in round {round_number}"
    state, closed = close(state, IncidentState.RECOVERED, at, says, stepped=True)
    follows = () if state.restored_step is None else state.follows  # nobody restored before the first step
    state = moved(state, Turn.TRAINS, progressed=True, follows=follows, reason=f"training in round {round_number}")
    return Step(state, lost + closed, Reason("first step", f"step {state.step} of round {round_number}"))


def checkpointed(state: JobState, event: Event, now: float) -> Step:
    """A checkpoint was committed. One of an older round was fenced by the store and is no news here."""
    assert isinstance(event, CheckpointRecorded)
    if state.round is None or not counts_in(state.round, event.round):
        return ignore(state, f"round {event.round} is over: its checkpoint does not count")
    if state.rewind is not None and state.rewind.round is None:
        return ignore(state, f"step {event.step} is of what is to be rewound")
    newest = state.checkpoints[-1] if state.checkpoints else None
    if newest is not None and counts_in(state.round, newest.round) and event.step <= newest.step:
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
    step = step.then(saved, event.wanted, event.step)
    broken = after.recovery is not None and after.recovery.incidents
    stepped = after.progressed and state.step is not None
    # What groups had made before they went on is no step of the round that they went on into.
    is_earlier = event.round != state.round.number
    return step if stepped or broken or is_earlier else step.then(_began, event.round, now)


def restored(state: JobState, event: Event, now: float) -> Step:
    """Where the round truly began.

    Checkpoints it passed over were damaged and are forgotten; who asked for it to go back is told.
    """
    assert isinstance(event, RestoreReported)
    if state.round is None or event.round != state.round.number:
        return ignore(state, f"round {event.round} is over")
    if state.restored_step is not None:
        return ignore(state, f"round {event.round} reported its restore before")
    step = event.step or 0
    if event.tier is not Tier.MEMORY:
        state = _settled(state, state.round.restore, step)
    kept = tuple(each for each in state.checkpoints if each.step <= step)
    # A planned change has none of the faults that storage is for.
    slow = {each.id for each in state.incidents if each.kind is FindingKind.STRAGGLER}
    needed = event.tier is not Tier.MEMORY and bool(healed_by(state, event.round) - slow)
    unhealthy_from = state.unhealthy_from
    not_yet = unhealthy_from is not None and step < unhealthy_from
    after = changed(
        state,
        checkpoints=kept,
        storage=up_to(state.storage, step),
        restored_step=step,
        publishes=True,
        ledger=state.ledger.back_to(step),
        verified_step=lowered(state.verified_step, event.step),
        unhealthy_from=None if not_yet else unhealthy_from,
        storage_restores=state.storage_restores + needed,
        learning_rate_cuts=cuts_from(state.learning_rate_cuts, step),
        follows=(Follows.RESTORE, *event.follows),
        until_step=_until(event.until, step),
    )
    says = f"round {event.round} begins after step {step}"
    if event.tier is Tier.MEMORY:
        says += ", from memory"
    if event.skipped:
        says += f"; passed over {'; '.join(event.skipped)}"
    if event.healed:
        says += f"; healed {'; '.join(event.healed)}"
    after, effects = note(after, event.round, now, says)
    return Step(after, effects, Reason("restored", says)).then(came_to, event)


def _settled(state: JobState, directive: Restore, step: int) -> JobState:
    """Once a round has begun from the checkpoint of `step`: what of what it was sent back with counts from now on.

    Nothing where the job is to go back once more, which was asked for meanwhile.
    """
    rewind, cuts = state.rewind, state.learning_rate_cuts
    if directive.otherwise is None or (rewind is not None and rewind.round is None):
        return state
    if rewind is not None:
        rewind = replace(rewind, restore=rewind.restore.settled(step))
    done = replace(directive, learning_rate_cuts=cuts).settled(step)
    return changed(state, rewind=rewind, learning_rate_cuts=done.learning_rate_cuts)


def _bounded(state: JobState, known: tuple[Checkpoint, ...]) -> tuple[Checkpoint, ...]:
    """The newest ones; before them the newest that is verified and the newest that is healthy, which a rewind may
    need.
    """
    newest, older = known[-KEPT_CHECKPOINTS:], known[:-KEPT_CHECKPOINTS]
    verified = state.verified_step if state.verified_step is not None else -1
    healthy = state.unhealthy_from - 1 if state.unhealthy_from is not None else newest[-1].step
    needed: dict[int, Checkpoint] = {}
    for last in (verified, healthy):
        sound = [each for each in older if each.step <= last]
        if sound and newest[0].step > last:
            needed[sound[-1].step] = sound[-1]
    return (*(needed[step] for step in sorted(needed)), *newest)


def _reached(state: JobState, step: int, at: float, told: Parts = NO_PARTS) -> JobState:
    """Every rank of the newest round has completed `step`, at `at` or before; `told` is what its steps waited for.

    Trained again is not progress: only a step beyond every earlier one forgives the failures before it.
    """
    return changed(
        state,
        step=max(step, state.step or 0),
        high_step=max(step, state.high_step),
        publishes=True,
        has_trained=True,
        until_step=_until(state.until_step, step),
        ledger=state.ledger.step(step, at, told),
        failures=() if step > state.high_step else state.failures,
    )


def _until(told: int | None, step: int) -> int | None:
    """The last step that a script means to make, which is at `step`. One that it is beyond is the end of something
    else, such as of a pass over the data.
    """
    return None if told is None or step > told else told


def began(state: JobState, event: Event, now: float) -> Step:
    """The first worker of the newest round has shown a sign of training."""
    assert isinstance(event, RoundBegan)
    if state.round is None or event.round != state.round.number:
        return ignore(state, f"round {event.round} is over")
    if state.signed_at is not None:
        return ignore(state, f"round {event.round} has shown a sign of training before")
    return Step(
        changed(state, signed_at=now, has_trained=True),
        (),
        Reason("first sign", f"{event.member} in round {event.round}"),
    )


def runs_unseen(state: JobState) -> bool:
    """Whether every member entered the newest round and nothing was ever said of which steps the script makes."""
    if state.round is None or state.publishes:
        return False
    return all(
        member is not None and member.entered_round == state.round.number and not member.reentrant
        for member in state.ranked_members()
    )


def steady_at(state: JobState) -> float | None:
    """When the newest round, of which no step can be seen, has run for long enough; None for other rounds."""
    if not state.progressed or state.step is not None or state.publishes:
        return None
    if state.signed_at is None:
        return state.round_shown_at + SILENT_STEADY_S
    return state.signed_at + STEADY_S


def next_closing(state: JobState) -> float | None:
    """When open incidents are over by steady running, None when nothing waits for that."""
    broken = state.recovery is not None and bool(state.recovery.incidents)
    return None if broken or not state.open_incidents() else steady_at(state)


def settled_down(state: JobState, now: float) -> Step:
    """Close what the round was meant to heal, once its workers run steadily."""
    at = next_closing(state)
    if at is None or now < at or state.round is None or state.phase is not JobPhase.RUNNING:
        return stay(state)
    says = f"workers run again in round {state.round.number} (the script publishes no steps)"
    state, closed = close(state, IncidentState.RECOVERED, now, says)
    return Step(state, closed, Reason("runs steadily", says))


def unforgiven(state: JobState, finding: Finding, now: float) -> tuple[Failure, ...]:
    """The failures that still count when `finding` comes: running steadily forgives them, as a new step does.

    Not those of the very exception that comes again: a script that fails at one line every few minutes loops. One
    that ends without an exception, as it does when somebody tells it to, has no such line.
    """
    at = steady_at(state)
    if at is None or now < at:
        return state.failures
    same = finding.cause if finding.trace else None
    return tuple(each for each in state.failures if each.cause == same)


def agreed(state: JobState, event: Event, now: float) -> Step:
    """What all ranks held after a step of the newest round is right."""
    assert isinstance(event, ReplicasAgreed)
    if state.round is None or event.round != state.round.number:
        return ignore(state, f"round {event.round} is over")
    if state.recovery is not None and state.recovery.incidents:
        return ignore(state, "a fault was found in this round")
    if state.verified_step is not None and event.step <= state.verified_step:
        return ignore(state, f"step {event.step} is verified already")
    if event.by is ProvedBy.DEVICES and state.comparable:
        return ignore(state, "replicas are compared, which sees more")
    comparable = state.comparable or event.by is ProvedBy.REPLICAS
    after = changed(state, verified_step=event.step, verified_by=event.by, comparable=comparable)
    says = "all replicas agreed" if comparable else "all devices answered right, and no memory was seen to change,"
    return Step(after, (), Reason("verified", f"{says} after step {event.step}"))


def vouch(state: JobState) -> Vouch | None:
    """What the newest round is told of what is verified and what is not healthy; nothing before it has said
    where it went on from.
    """
    round_, step, unhealthy_from = state.round, state.verified_step, state.unhealthy_from
    if round_ is None or state.restored_step is None or (step is None and unhealthy_from is None):
        return None
    return Vouch(round_.ranks[0].member, Verified(round_.number, step, unhealthy_from))


def rewound(state: JobState, policy: Policy, finding: Finding) -> JobState:
    """The state whose next round restores what is sound; what was saved since counts no more.

    Of a loss that was not finite, or rose, that is what came before. Of parameters that differ it is what was
    verified. Detectors forget what was agreed on when they begin anew (a restart, another policy), the state does
    not. With nothing verified the round begins from where the one with the error began, which came before it.
    """
    if finding.kind in (FindingKind.NON_FINITE, FindingKind.DIVERGENCE):
        limit = (finding.step or 0) - 1
    else:
        agreed = [each for each in (finding.agreed_step, state.verified_step) if each is not None]
        limit = min(agreed, default=state.restored_step or 0)
    kept = tuple(each for each in state.checkpoints if each.step <= limit)
    there = [each for each in known_checkpoints(state) if each.step <= limit]
    order = restore_order(there[::-1], state.unhealthy_from)
    began_before = state.restored_step if state.restored_step and state.restored_step <= limit else None
    step = order[0].step if order else began_before
    tier = Tier.NONE if step is None else Tier.CHECKPOINT
    restore, cuts = Restore(tier, step, policy.checkpoint_uri, owner=state.incarnation), state.learning_rate_cuts
    of_all = finding.kind is FindingKind.DIVERGENCE and finding.subject.rank is None
    loss = policy.loss if of_all else None
    if loss is not None and loss.skip_batches:
        restore = replace(restore, skip_until=limit + loss.skip_batches)
    if loss is not None and loss.learning_rate_scale != 1.0:
        restore = replace(restore, learning_rate_scale=loss.learning_rate_scale)
        until = None if loss.learning_rate_steps is None else limit + loss.learning_rate_steps
        cuts = with_cut(cuts, LearningRateCut(loss.learning_rate_scale, step or 0, until))
    lower = lowered(state.verified_step, step)
    storage = up_to(state.storage, limit)
    return changed(
        state,
        checkpoints=kept,
        storage=storage,
        rewind=Rewind(restore),
        verified_step=lower,
        learning_rate_cuts=cuts,
    )


def with_cut(cuts: tuple[LearningRateCut, ...], cut: LearningRateCut) -> tuple[LearningRateCut, ...]:
    """`cuts` and one more. Of very many the oldest that is over goes, and where none is, the oldest."""
    if len(cuts) < KEPT_CUTS:
        return (*cuts, cut)
    goes = next((place for place, each in enumerate(cuts) if not each.holds_at(cut.after + 1)), 0)
    return (*cuts[:goes], *cuts[goes + 1 :], cut)


def is_of_replicas(finding: Finding) -> bool:
    """Whether it was found by comparing parameters, which says nothing where they are not meant to be equal."""
    return finding.cause.startswith("fingerprint")


def is_disputed(finding: Finding) -> bool:
    """Whether replicas or devices differ and nobody is in the majority."""
    return finding.confidence is Confidence.UNKNOWN and finding.asks is not XidAction.WATCH


def lowered(verified: int | None, restored: int | None) -> int | None:
    """What is verified of a line that goes on from the step restored: what came after it is trained anew."""
    return None if verified is None or restored is None else min(verified, restored)


def unhealthy(state: JobState, finding: Finding) -> JobState:
    """The state that knows of the finding: nothing of its step or later is healthy."""
    if finding.kind is not FindingKind.NON_FINITE or finding.skipped or finding.step is None:
        return state
    known = state.unhealthy_from
    return changed(state, unhealthy_from=finding.step if known is None else min(known, finding.step))


def no_help(state: JobState, finding: Finding, now: float) -> str | None:
    """Why going back once more would be no help; None: it may be.

    Each time needs a checkpoint that was saved, and was healthy, beyond the place of the last one: so that going
    back always ends.
    """
    step = finding.step or 0
    earlier = [each for each in state.went_back if each.kind is finding.kind]
    if not earlier:
        return None
    before = earlier[-1]
    if not any(before.step < each.step < step for each in state.checkpoints):
        return f"the job went back for the same at step {before.step}, and has saved nothing beyond that since"
    recent = sum(1 for each in earlier if each.at > now - REWINDS_WITHIN_S)
    if recent >= REWINDS_THAT_PAGE:
        return f"the job went back for the same {recent} times within an hour"
    return None


def comes_again(state: JobState, finding: Finding) -> bool:
    """Whether a value was not finite at this very step before, and the job went back for it: the same batch gave
    it twice.
    """
    return bool(incidents_before(state, finding))


def incidents_before(state: JobState, finding: Finding) -> set[str]:
    """Those for which the job went back to this very step of this rank before."""
    if finding.kind is not FindingKind.NON_FINITE or finding.skipped:
        return set()
    alike = (each for each in state.went_back if (each.kind, each.step) == (finding.kind, finding.step))
    rank = finding.subject.rank
    return {each.incident for each in alike if None in (rank, each.rank) or each.rank == rank}


def concerns(state: JobState, finding: Finding, running: Round) -> bool:
    """Whether a fault of a round that is over is in the history that the newest one goes on with.

    A report may come after its round has ended for another reason.
    """
    if finding.kind is not FindingKind.NON_FINITE or finding.skipped or finding.step is None:
        return False
    if state.rewind is not None and state.rewind.restore.step is not None:
        return state.rewind.restore.step >= finding.step
    began = state.restored_step if state.restored_step is not None else running.restore.step
    return began is not None and began >= finding.step
