"""What people ask for: a job submitted or changed, and the interventions of an on-call engineer."""

from collections.abc import Callable, Mapping

import msgspec

from holdfast.api.event import Event, InterventionRequested, JobSubmitted
from holdfast.api.intervention import (
    InterventionAction,
    InterventionOutcome,
    InterventionRequest,
    InterventionState,
)
from holdfast.api.learningrate import LearningRateCut
from holdfast.api.plan import NodeOrder, Plan
from holdfast.api.policy import Policy
from holdfast.api.profile import RANKS_MAX, STEPS, STEPS_MAX
from holdfast.api.round import Entry, Idle, Restore, Tier
from holdfast.api.selftest import TestLevel
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.history import with_cut
from holdfast.watchdog.brain.linktests import turn_of
from holdfast.watchdog.brain.nodes import avoid, readmit, take_back
from holdfast.watchdog.brain.phases import Turn, moved
from holdfast.watchdog.brain.rewinds import ask_to_go_back, give_up, target, under_way, up_to
from holdfast.watchdog.brain.roster import Roster
from holdfast.watchdog.brain.rounds import next_number, owe
from holdfast.watchdog.brain.saves import answered, ask_for_checkpoint, can_save, cannot_save, conclude, in_force
from holdfast.watchdog.brain.selftests import ask, others_suffice, takes
from holdfast.watchdog.brain.state import JobState, Recovery, Rewind
from holdfast.watchdog.brain.step import Answered, Pardon, Reason, Show, Step, TakeProfile, changed, ignore
from holdfast.watchdog.wording import ranks_in_words

AFTER_FAILURE = (
    InterventionAction.RETURN,
    InterventionAction.RESUME,
    InterventionAction.RESTART,
    InterventionAction.REWIND,
    InterventionAction.SKIP_BATCHES,
)
_AFTER_FAILURE = ", ".join(each.value for each in AFTER_FAILURE)


class Refusal(Exception):
    """Why an intervention is not done; its text is the outcome shown to the engineer."""


def submitted(state: JobState, event: Event, now: float) -> Step:
    """A job or a new version of its policy."""
    assert isinstance(event, JobSubmitted)
    if event.policy == state.policy:
        return ignore(state, "the same policy again")
    if is_another(state, event.policy):
        return _succeeded_by(state, event.policy, now)
    known = state.policy
    if known is not None and known.held and not event.policy.held and event.policy.generation == known.generation:
        # A resize stands until the spec has a later version, and this one is known but for what was held back.
        lifted = msgspec.structs.replace(_told_by_cluster(known, event.policy).judged_as(event.policy), held=False)
        says = "the change that was held back takes effect"
        return Step(changed(state, policy=lifted), (), Reason("policy changed", says))
    if not _is_newer(state, event.policy):
        says = f"generation {event.policy.generation} is no newer than what is known"
        return _ruled(state, event.policy, says)
    again = "policy changed" if state.policy else "submitted"
    incarnation = state.incarnation or event.policy.uid or f"{state.job}@{now:.3f}"
    # Who came before there was a policy comes again: until now nobody could say who it is.
    members = Roster() if state.policy is None and event.policy.uid else state.members
    after = changed(state, policy=event.policy, incarnation=incarnation, members=members)
    return Step(after, (), Reason(again, f"job {state.job} {again}"))


def resubmitted(state: JobState, event: Event, now: float) -> Step:
    """A job that is over changes no more; another one of its name begins anew."""
    assert isinstance(event, JobSubmitted)
    if not is_another(state, event.policy):
        if state.phase is JobPhase.FAILED and _is_newer(state, event.policy):
            after = changed(state, policy=event.policy)  # counts once a Restart brings the job back
            return Step(after, (), Reason("policy changed", f"job {state.job} policy changed"))
        return _ruled(state, event.policy, "the job is over")
    return _succeeded_by(state, event.policy, now)


def _ruled(state: JobState, policy: Policy, otherwise: str) -> Step:
    """Of a version of the spec that is known, what the cluster says now counts at once, and nothing else."""
    known = state.policy
    if known is None or known.generation != policy.generation:
        return ignore(state, otherwise)
    ruled = _told_by_cluster(known, policy)
    if ruled == known:
        return ignore(state, otherwise)
    return Step(changed(state, policy=ruled), (), Reason("policy changed", "the cluster's policy changed"))


def _told_by_cluster(known: Policy, policy: Policy) -> Policy:
    """`known`, with what the cluster says in `policy`."""
    return msgspec.structs.replace(
        known,
        cordon_on=policy.cordon_on,
        cluster_xid_actions=policy.cluster_xid_actions,
        admitted=policy.admitted,
    )


def is_another(state: JobState, policy: Policy) -> bool:
    """Whether the policy is of another job of the same name, also when launchers had brought the one there is.

    Launchers started by hand know of no uid: they bring no other job.
    """
    return state.policy is not None and bool(policy.uid) and policy.uid != state.policy.uid


def _is_newer(state: JobState, policy: Policy) -> bool:
    """Whether a spec that counts its versions is a later one; a resize stands until then."""
    return state.policy is None or not policy.generation or policy.generation > state.policy.generation


def _succeeded_by(state: JobState, policy: Policy, now: float) -> Step:
    """Another job has taken the name: nothing of the old one counts but the numbers, which only grow."""
    says = "another job of this name was submitted"
    idle = Idle(state.job, next_number(state), says)
    plan = None if state.plan is None else Plan(state.job, state.plan.number, members=0, spares=0)
    fresh = JobState(
        state.job,
        policy=policy,
        incarnation=policy.uid or f"{state.job}@{now:.3f}",
        desired=idle,
        plan=plan,
        incident_count=state.incident_count,
        save_count=state.save_count,
        number_floor=state.number_floor,
        trial_count=state.trial_count,
    )
    # Who asked something of the old job is answered, and what was answered is not done to the new one.
    concluded = conclude(state, says).then(give_up, says)
    fresh = changed(fresh, answered=concluded.state.answered)
    return Step(fresh, (*concluded.effects, Show(idle)), Reason("submitted", says))


def requested(state: JobState, event: Event, now: float) -> Step:
    """Do an intervention once, or say why not."""
    assert isinstance(event, InterventionRequested)
    request = event.request
    if request.id in state.answered:
        return ignore(state, f"intervention {request.id} was answered before")
    if (says := pending(state, request.id)) is not None:
        return ignore(state, f"intervention {request.id} is {says}")
    try:
        if state.phase is JobPhase.SUCCEEDED and request.action not in _after_success(state):
            raise Refusal("the job has finished; only Return is possible")
        if state.phase is JobPhase.FAILED and request.action not in AFTER_FAILURE:
            raise Refusal(f"the job has failed ({state.reason}); only {_AFTER_FAILURE} are possible")
        return DOERS[request.action](state, request, now)
    except Refusal as refusal:
        return _answer(state, request, str(refusal), InterventionState.REFUSED)


def _after_success(state: JobState) -> tuple[InterventionAction, ...]:
    """What is possible then. A job that no cluster keeps may be started once more, to train more steps: the object
    of a cluster has succeeded for good, and another one goes on from its checkpoints.
    """
    is_of_cluster = state.policy is not None and bool(state.policy.uid)
    restart = () if is_of_cluster else (InterventionAction.RESTART,)
    return (InterventionAction.RETURN, *restart)


def _answer(
    state: JobState, request: InterventionRequest, says: str, outcome: InterventionState = InterventionState.DONE
) -> Step:
    """The request comes to its end."""
    told = Answered(InterventionOutcome(request.id, outcome, says))
    reason = Reason(f"intervention {request.action.value}", says)
    return Step(answered(state, (request.id,)), (told,), reason)


def pending(state: JobState, id: str) -> str | None:
    """How far an intervention is that was taken and is not answered yet; None for any other."""
    if state.saving is not None and id in state.saving.asked:
        return f"under way: waiting for the checkpoint that round {state.saving.round} was asked for"
    return under_way(state, id)


def _evict(state: JobState, request: InterventionRequest, now: float) -> Step:
    node = _named_node(request)
    if not state.members.on_nodes((node,)):
        raise Refusal(f"node {node} has no member of this job")
    if node in state.avoided_nodes:
        raise Refusal(f"node {node} is avoided already")
    after = avoid(state, NodeOrder(node, f"requested: {request.reason}"), now)
    if state.round is not None and any(share.node == node for share in state.round.ranks):
        after = owe(after, Recovery(reason=f"node {node} evicted on request: {request.reason}"))
    return _answer(after, request, f"node {node} evicted")


def _return(state: JobState, request: InterventionRequest, now: float) -> Step:
    node = _named_node(request)
    is_away = node in state.departed and node not in state.avoided_nodes
    was_slow = node not in state.avoided_nodes and any(each.node == node and each.tries for each in state.slow)
    if node not in state.avoided_nodes and not is_away and not was_slow:
        raise Refusal(f"node {node} is not avoided")
    says = f"returned on request: {request.reason}"
    # One that was slow is there, perhaps with ranks. Of a job that is over nothing runs that would test the node.
    if was_slow or state.phase is JobPhase.SUCCEEDED:
        step = Step(take_back(state, (node,)), (), Reason("readmitted", f"node {node}: {says}"))
    else:
        step = readmit(state, node, now, says)
    told = " on probation: self-tests, then a spare, then ranks" if node in step.state.probation else ""
    told += "; it is used again once it is back in the cluster" if is_away else ""
    done = _answer(step.state, request, f"node {node} returned{told}")
    return Step(done.state, (*done.effects, Pardon(node, request.reason), *step.effects), done.reason)


def _pause(state: JobState, request: InterventionRequest, now: float) -> Step:
    if state.paused:
        raise Refusal("the job is suspended already")
    says = "suspended; training resumes from the newest checkpoint"
    return _answer(changed(state, paused=True), request, says)


def _resume(state: JobState, request: InterventionRequest, now: float) -> Step:
    by_spec = state.policy is not None and state.policy.suspend
    by_queue = state.policy is not None and state.policy.admitted == 0
    if not state.paused:
        says = "spec.suspend of the job is true; set it to false" if by_spec else "the job is not suspended"
        raise Refusal("the cluster's queue has not admitted the job" if by_queue and not by_spec else says)
    says = "resumed"
    if by_spec:
        says = "paused no more; spec.suspend of the job is true and keeps it suspended"
    elif by_queue:
        says = "paused no more; the cluster's queue has not admitted the job, and keeps it suspended"
    return _answer(changed(state, paused=False), request, says)


def _restart(state: JobState, request: InterventionRequest, now: float) -> Step:
    if state.held:
        raise Refusal("the job is suspended; resume it first")
    says = ", from the beginning" if request.fresh else ""
    if request.fresh:
        # Nothing that was saved counts any more. What is saved from now on takes its place, and it is deleted.
        if state.policy is None:
            raise Refusal("the job is not submitted yet")
        rewind = Rewind(Restore(Tier.NONE, uri=state.policy.checkpoint_uri, owner=state.incarnation))
        storage = up_to(state.storage, -1)
        state = changed(state, rewind=rewind, checkpoints=(), storage=storage, went_back=(), learning_rate_cuts=())
    state = changed(state, has_trained=False)  # whoever asks may have changed the script
    if state.round is None:
        return _answer(moved(state, Turn.FORMED_ANEW, failures=()), request, f"the job forms anew{says}")
    recovery = Recovery(reason=f"restarted on request{says}: {request.reason}", entry=Entry.RESPAWN)
    return _answer(_started_anew(state, recovery), request, f"every worker starts anew{says}")


def _started_anew(state: JobState, recovery: Recovery) -> JobState:
    """Who finished the newest round is to train on."""
    done = [each for each in state.members if each.finished_round is not None]
    members = state.members.replaced(msgspec.structs.replace(each, finished_round=None) for each in done)
    return moved(state, Turn.RESTARTED, failures=(), recovery=recovery, members=members)


def _resize(state: JobState, request: InterventionRequest, now: float) -> Step:
    if state.policy is None:
        raise Refusal("the job is not submitted yet")
    wanted = request.nodes
    if wanted is None or wanted < state.policy.nodes_min:
        raise Refusal(f"nodes: {wanted!r} is not accepted; give at least {state.policy.nodes_min}")
    policy = msgspec.structs.replace(state.policy, nodes_max=wanted)
    if wanted % (policy.replica_nodes or 1):
        size = policy.replica_nodes
        raise Refusal(f"nodes: {wanted} is not accepted; give a multiple of {size}, the nodes of a replica group")
    if not policy.world_sizes_allow(wanted):
        raise Refusal(
            f"nodes: {wanted} x {policy.processes_per_node} ranks is no multiple of {policy.model_ranks}"
        )
    says = f"resized to {wanted} nodes"
    if policy.admitted is not None and wanted > policy.admitted:
        says += f"; the cluster's queue has admitted {policy.admitted}, and no more run until it admits more"
    return _answer(changed(state, policy=policy), request, says)


def _go_back(state: JobState, request: InterventionRequest, now: float) -> Step:
    """Rewind to a step, or skip batches from the newest checkpoint on; answered once the round that goes back has
    said what it restored.
    """
    limit = request.to_step
    refused = f"toStep: {limit} is not accepted; "
    if request.action is InterventionAction.SKIP_BATCHES:
        if request.skip_batches <= 0:
            raise Refusal(f"skipBatches: {request.skip_batches} is not accepted; give at least 1")
        limit, refused = None, "no checkpoint is known to skip from: "
    elif limit is None:
        raise Refusal("toStep: None is not accepted; name the step to go back to")
    where = target(state, limit)
    if isinstance(where, str):
        raise Refusal(f"{refused}{where}")
    asked = ask_to_go_back(state, request.id, limit, where)
    state, policy = asked.state, state.policy
    assert policy is not None
    directive = Restore(
        Tier.CHECKPOINT,
        where.step,
        policy.checkpoint_uri,
        request.skip_batches,
        request.learning_rate_scale,
        state.incarnation,
        otherwise=where.otherwise,
    )
    last = where.step if where.otherwise is None else where.otherwise
    cuts = state.learning_rate_cuts
    if request.action is InterventionAction.REWIND and where.otherwise is None:
        # Also what was cut when the job went back to this very step: its state is from before that.
        cuts = tuple(each for each in cuts if each.after < where.step)
    if request.learning_rate_scale != 1.0:
        cuts = with_cut(cuts, LearningRateCut(request.learning_rate_scale, where.step))
    after = changed(
        state,
        learning_rate_cuts=cuts,
        rewind=Rewind(directive),
        checkpoints=tuple(each for each in state.checkpoints if each.step <= last),
        storage=up_to(state.storage, last),
        # What the job went back for by itself was in the history that is given up: it does not count against this.
        went_back=(),
    )
    recovery = Recovery(f"rewound to step {where.step} on request: {request.reason}")
    if state.phase is JobPhase.FAILED:
        again = changed(after, has_trained=False)
        anew = msgspec.structs.replace(recovery, entry=Entry.RESPAWN)
        return Step(_started_anew(again, anew), asked.effects, asked.reason)
    return Step(owe(after, recovery), asked.effects, asked.reason)


def _checkpoint(state: JobState, request: InterventionRequest, now: float) -> Step:
    """Answered once the checkpoint is committed."""
    if (obstacle := cannot_save(state)) is not None:
        raise Refusal(obstacle)
    return ask_for_checkpoint(state, f"requested: {request.reason}", now, request=request.id)


def _named_node(request: InterventionRequest) -> str:
    if not request.node:
        raise Refusal("node: nothing given; name the node")
    return request.node


def _test(state: JobState, request: InterventionRequest, now: float) -> Step:
    """A node without ranks is tested thoroughly, at once; one with ranks lightly, when its workers have next left.

    They leave for no test but a full one that is asked for by name.
    """
    node = _named_node(request)
    members = state.members.on_nodes((node,))
    if not members:
        raise Refusal(f"node {node} has no member of this job")
    if any(trial.links for each in members if (trial := state.trials.get(each.name)) is not None):
        # Its part would be taken back, and whoever does not come to the others has failed.
        raise Refusal(f"the links of node {node} are being tested; ask again when that is over")
    idle = not any(state.in_round(each.name) for each in members)
    level = request.level or (TestLevel.FULL if idle else TestLevel.LIGHT)
    names = tuple(each.name for each in members)
    bars = idle or level is TestLevel.FULL
    state, links = turn_of(state, node) if idle else (state, "")
    asked = ask(state, names, level, f"requested: {request.reason}", now, bars=bars)
    when = "now" if idle else _gives_way(asked.state) if bars else "as soon as its workers have left the round"
    more = f"; {links}" if links else ""
    says = f"{level.value} self-test of node {node}, {takes(level)}: {when}{more}; a failure will be an incident"
    return _answer(asked.state, request, says).prefixed(asked.effects)


def _gives_way(state: JobState) -> str:
    """What a full self-test of a member with ranks does to the training, in words."""
    cost = (
        "its ranks move to a spare" if others_suffice(state) else "its ranks wait meanwhile, and so does training"
    )
    if not in_force(state):
        return f"as soon as its workers have left the round; {cost}"
    return f"once a checkpoint is committed; {cost}" if can_save(state) else f"now, without a checkpoint; {cost}"


def _profile(state: JobState, request: InterventionRequest, now: float) -> Step:
    """Answered at once; what comes of it is told by the ranks."""
    round_ = state.round
    if round_ is None or not in_force(state):
        raise Refusal("no round runs, so there is nothing to profile")
    ranks, steps = tuple(sorted(set(request.ranks))), STEPS if request.steps is None else request.steps
    if not 1 <= len(ranks) <= RANKS_MAX:
        raise Refusal(f"profile.ranks: {len(ranks)} ranks are not accepted; name 1 to {RANKS_MAX}")
    if ranks[-1] >= round_.world_size:
        raise Refusal(f"profile.ranks: {ranks[-1]} is not accepted; give ranks from 0 to {round_.world_size - 1}")
    if not 1 <= steps <= STEPS_MAX:
        raise Refusal(f"profile.steps: {steps} is not accepted; give 1 to {STEPS_MAX}")
    says = f"{ranks_in_words(ranks)} of round {round_.number} were asked to record {steps} steps"
    return _answer(state, request, says).prefixed((TakeProfile(round_, ranks, steps),))


DOERS: Mapping[InterventionAction, Callable[[JobState, InterventionRequest, float], Step]] = {
    InterventionAction.CHECKPOINT: _checkpoint,
    InterventionAction.EVICT: _evict,
    InterventionAction.PAUSE: _pause,
    InterventionAction.RESIZE: _resize,
    InterventionAction.RESTART: _restart,
    InterventionAction.RESUME: _resume,
    InterventionAction.RETURN: _return,
    InterventionAction.PROFILE: _profile,
    InterventionAction.REWIND: _go_back,
    InterventionAction.SKIP_BATCHES: _go_back,
    InterventionAction.TEST: _test,
}
