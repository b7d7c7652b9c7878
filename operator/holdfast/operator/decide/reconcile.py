"""What the operator does about one job: everything observed in, everything to do out. Level-based and pure.

The watchdog decides about faults; here its plan is made true, and nothing else. The same call after a restart,
after a lost event, or twice in a row comes to the same.
"""

from holdfast.api.plan import Plan, PodObserved, PodState
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.decide.action import Action, EndCheck, SetFinalizer, Submit, Tell
from holdfast.operator.decide.belongings import BUDGET, budget_of, made, removed, service_of
from holdfast.operator.decide.capacity import capacity
from holdfast.operator.decide.checkpod import checking
from holdfast.operator.decide.conditions import changes_in_s
from holdfast.operator.decide.context import Context, Decision, context_of
from holdfast.operator.decide.ending import LOOK_AGAIN_S, Waiting, finish, waiting, wind_up
from holdfast.operator.decide.events import events_of
from holdfast.operator.decide.handover import handed_on
from holdfast.operator.decide.nodes import cordons
from holdfast.operator.decide.observed import Mode, Observed, Options, Outcome
from holdfast.operator.decide.pods import ended_by, state_of
from holdfast.operator.decide.policycheck import Standing, as_in_force
from holdfast.operator.decide.quota import evicted, quota
from holdfast.operator.decide.staffing import staff
from holdfast.operator.decide.status import draft
from holdfast.operator.kube.objects import FINALIZER, Pod


def reconcile(observed: Observed, options: Options, now: float) -> Outcome:
    """What to do about the job now. `now` is in wall seconds."""
    ctx = context_of(observed, options, now)
    decision = _decide(ctx)
    status = draft(ctx, decision)
    written = status.whole.encode() if status.is_due else None
    status_changes_s = _soonest(status.requeue_after_s, changes_in_s(ctx))
    if options.mode is Mode.OBSERVE:
        would = f"observing only; would do {len(decision.actions)} things: {decision.reason}"
        return Outcome((), written, (), would, status_changes_s)
    told: tuple[Tell, ...] = ()
    # Of a job that is deleted the watchdog has to see only as long as it still has something to decide.
    if ctx.deleted_at is None or (
        FINALIZER in ctx.metadata.finalizers and waiting(ctx, ctx.deleted_at) is Waiting.SUSPENDING
    ):
        told = observations(ctx)
    return Outcome(
        actions=(*told, *decision.actions),
        status=written,
        events=events_of(ctx, decision, status.whole),
        reason=decision.reason,
        requeue_after_s=_soonest(decision.requeue_after_s, status_changes_s),
    )


def _decide(ctx: Context) -> Decision:
    observed, options = ctx.observed, ctx.options
    # Deleted by somebody: one more checkpoint, then it is let go.
    if ctx.deleted_at is not None:
        return wind_up(ctx, ctx.deleted_at)
    # Over: clean up.
    if ctx.ended is not None:
        return finish(ctx)
    # Refused: no pod may be made of the spec, and what runs is left alone.
    node_marks = (*cordons(ctx.id, ctx.plan, observed.nodes, options.cordoning), *handed_on(ctx))
    changed = ctx.changed
    if ctx.job is None or changed is None or ctx.invalid is not None:
        return _left_alone(ctx, node_marks, f"left alone, the spec is refused: {ctx.invalid}")
    # Forgotten: the watchdog would take a job that runs for a new one.
    if ctx.forgotten is not None:
        return _left_alone(ctx, node_marks, f"left alone: {ctx.forgotten}")
    # Our finalizer comes before everything that would have to be wound up.
    if FINALIZER not in ctx.metadata.finalizers and options.mode is Mode.ACT:
        return Decision((SetFinalizer(held=True),), "the job is held before anything is made", LOOK_AGAIN_S)
    # The watchdog gets the job's policy, unless it has this very one. While it is away nothing is lost.
    submit = () if ctx.taken or not ctx.connected else (Submit(changed.policy),)
    checks = _checks(ctx, ctx.job, changed)
    queued = quota(ctx, ctx.job)
    look_again = _soonest(LOOK_AGAIN_S if submit else None, queued.requeue_after_s)
    plan = ctx.plan
    if plan is None and options.mode is Mode.OBSERVE and ctx.connected:
        # The watchdog is never told of a job that is only observed: what the spec alone asks for.
        nodes, suspend = ctx.job.spec.nodes, ctx.job.spec.suspend
        plan = Plan(ctx.id, 0, 0, 0) if suspend else Plan(ctx.id, 0, nodes.max, nodes.spares)
    if plan is None:
        reason = "waiting for the watchdog to take the job" if ctx.connected else "the watchdog is away"
        return Decision((*submit, *queued.actions), reason, look_again)
    # A service for the pods' names, and a budget as long as there is a pod that a drain has to wait for.
    service = made(service_of(ctx.metadata), observed.services)
    if plan.members + plan.spares == 0:
        budget = removed(BUDGET, observed.budgets)
    else:
        budget = made(budget_of(ctx.metadata, ctx.job.spec.template), observed.budgets)
    # The pods the plan wants; a crash loop makes some wait, and so does a job that is ahead in the queue, of which
    # no change of this job tells.
    staffing = staff(ctx, as_in_force(ctx.job, changed.policy), plan)
    asking = capacity(ctx, ctx.job)
    changes_at = _soonest(ctx.crash_loop.changes_at, ctx.refusals.changes_at)
    loop_s = None if changes_at is None else max(0.0, changes_at - ctx.now)
    contends = ctx.contends
    waits = contends is not None and (contends.held or contends.short_since is not None)
    turn_s = LOOK_AGAIN_S if waits else None
    return Decision(
        (*submit, *checks, *queued.actions, *service, *budget, *node_marks, *staffing.actions, *asking.actions),
        staffing.reason,
        _soonest(look_again, turn_s, loop_s, changed.again_s, staffing.requeue_after_s, asking.requeue_after_s),
    )


def _checks(ctx: Context, job: TrainingJob, changed: Standing) -> tuple[Action, ...]:
    """The pod that tries a changed policy comes once the watchdog, whose journal it reads, is there."""
    ends = tuple(EndCheck(each.metadata.name, each.metadata.uid) for each in changed.ends)
    starts = changed.starts and ctx.connected and ctx.options.check_image
    return (*ends, checking(job, ctx.options, changed.starts)) if starts else ends


def _left_alone(ctx: Context, node_marks: tuple[Action, ...], says: str) -> Decision:
    """Nobody can be asked to save it; nodes that its queue takes back are others' all the same."""
    back = evicted(ctx)
    return Decision((*node_marks, *back.actions), says, back.requeue_after_s)


def _soonest(*waits: float | None) -> float | None:
    return min((each for each in waits if each is not None), default=None)


def observations(ctx: Context) -> tuple[Tell, ...]:
    """What the watchdog is told of nodes and pods: all of it each time; who sends it leaves out what was said."""
    pods = ctx.pods
    there = [_seen(pod) for pod in (*pods.live, *pods.stranded, *pods.released, *pods.ended)]
    plan, leaving = ctx.plan, [_seen(pod) for pod in pods.leaving]
    all_wanted_away = ctx.ended is not None or (plan is not None and plan.members + plan.spares == 0)
    for place, seen in enumerate(leaving):
        wanted_away = all_wanted_away or (plan is not None and seen.member in plan.release)
        if seen.state is PodState.LEAVING and wanted_away:
            # That a pod goes as the plan wants is no news: it is there until it is gone. Left out it would count
            # as gone, and the watchdog would release it no more while its node holds it.
            leaving[place] = PodObserved(seen.member, seen.node, PodState.RUNNING)
    return (*map(Tell, ctx.nodes.values()), *map(Tell, (*there, *leaving)))


def _seen(pod: Pod) -> PodObserved:
    state, reason = state_of(pod)
    return PodObserved(pod.metadata.name, pod.spec.node_name, state, reason, ended_by(pod))
