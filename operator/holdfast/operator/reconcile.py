"""What the operator does about one job: everything observed in, everything to do out. Level-based and pure.

    deleted? -> wind up        refused, forgotten? -> leave what runs alone      over? -> clean up
    not held yet? -> finalizer        otherwise -> submit, belongings, nodes, pods

The watchdog decides about faults; here its plan is made true, and nothing else. The same call after a restart,
after a lost event, or twice in a row comes to the same.
"""

from holdfast.api.plan import Plan, PodObserved, PodState
from holdfast.api.trainingjob import TrainingJob, policy_of
from holdfast.operator.action import Action, DeleteJob, SetFinalizer, Submit, Tell
from holdfast.operator.belongings import BUDGET, budget_of, made, removed, service_of
from holdfast.operator.case import Case, Decision, open_case
from holdfast.operator.chronicle import chronicle
from holdfast.operator.conditions import held_up_in_s, missed_in_s
from holdfast.operator.cordoning import cordons
from holdfast.operator.departure import still_needed, wind_up
from holdfast.operator.marks import FINALIZER
from holdfast.operator.objects import Pod
from holdfast.operator.observed import Mode, Observed, Outcome, Terms
from holdfast.operator.podstate import ended_by, state_of
from holdfast.operator.staffing import delete, force, staff, wish
from holdfast.operator.status import draft

LINGERING_S = 60.0
"""A launcher exits within seconds of the end; a pod that still runs then does not know of it."""

LOOK_AGAIN_S = 5.0
"""After something was asked for whose answer comes by itself, as a rule."""


def reconcile(observed: Observed, terms: Terms, now: float) -> Outcome:
    """What to do about the job now. `now` is in wall seconds."""
    case = open_case(observed, terms, now)
    decision = _decide(case)
    told = sightings(case) if case.deleted_at is None or still_needed(case, case.deleted_at) else ()
    status = draft(case, decision)
    status_changes_s = _soonest(status.requeue_after_s, missed_in_s(case), held_up_in_s(case))
    if terms.mode is Mode.OBSERVE:
        return Outcome((), status.write, (), f"observing only; {_would(decision)}", status_changes_s)
    return Outcome(
        actions=(*told, *decision.actions),
        status=status.write,
        events=chronicle(case, decision, status.whole),
        reason=decision.reason,
        requeue_after_s=_soonest(decision.requeue_after_s, status_changes_s),
    )


def _decide(case: Case) -> Decision:
    if case.deleted_at is not None:
        return wind_up(case, case.deleted_at)
    if case.ended is not None:
        return finish(case)
    if case.job is None or case.invalid is not None:
        return Decision(cordons(case), f"left alone, the spec is refused: {case.invalid}")
    if case.forgotten is not None:
        return Decision(cordons(case), f"left alone: {case.forgotten}")
    if FINALIZER not in case.metadata.finalizers and case.terms.mode is Mode.ACT:
        return Decision((SetFinalizer(held=True),), "the job is held before anything is made", LOOK_AGAIN_S)
    return _run(case, case.job)


def _run(case: Case, job: TrainingJob) -> Decision:
    """Make the plan true."""
    submit = _submission(case, job)
    look_again = LOOK_AGAIN_S if submit else None
    plan = case.plan or _supposed(case, job)
    if plan is None:
        reason = "waiting for the watchdog to take the job" if case.connected else "the watchdog is away"
        return Decision(submit, reason, look_again)
    staffing = staff(case, job, plan)
    actions = (*submit, *_belongings(case, plan), *cordons(case), *staffing.deletes, *staffing.creates)
    changes_at = case.crash_loop.changes_at
    # What other jobs do is no news of this one.
    turn = LOOK_AGAIN_S if case.contends is not None and case.contends.waits else None
    loop_s = None if changes_at is None else max(0.0, changes_at - case.now)
    return Decision(actions, staffing.reason, _soonest(look_again, turn, loop_s, staffing.requeue_after_s))


def _supposed(case: Case, job: TrainingJob) -> Plan | None:
    """What an operator that only observes takes for the plan of a job that the watchdog is never told of."""
    return wish(case, job) if case.terms.mode is Mode.OBSERVE and case.connected else None


def _submission(case: Case, job: TrainingJob) -> tuple[Action, ...]:
    """The job's policy, unless the watchdog has this very one. While it is away nothing is lost."""
    return () if case.taken or not case.connected else (Submit(policy_of(job)),)


def _belongings(case: Case, plan: Plan) -> tuple[Action, ...]:
    """A job that holds no pods needs no budget; its service stays."""
    observed = case.observed
    service = made(service_of(case.metadata), observed.services)
    if plan.members + plan.spares == 0:
        return (*service, *removed(BUDGET, observed.budgets))
    return (*service, *made(budget_of(case.metadata, case.terms.budget_api), observed.budgets))


def _would(decision: Decision) -> str:
    return f"would do {len(decision.actions)} things: {decision.reason}"


def _soonest(*waits: float | None) -> float | None:
    return min((each for each in waits if each is not None), default=None)


# What the watchdog is told of nodes and pods: all of it each time; whoever sends it leaves out what was said.


def sightings(case: Case) -> tuple[Tell, ...]:
    """Everything that is seen. That a pod goes as the plan wants is no news: it is there until it is gone."""
    nodes = [Tell(node) for node in case.nodes.values()]
    roll = case.roll
    pods = [Tell(_pod_observed(pod)) for pod in (*roll.live, *roll.stranded, *roll.released, *roll.ended)]
    return (*nodes, *pods, *(Tell(_leaving(case, pod)) for pod in roll.leaving))


def _leaving(case: Case, pod: Pod) -> PodObserved:
    """Left out it would count as gone, and the watchdog would release it no more while its node holds it."""
    plan, seen = case.plan, _pod_observed(pod)
    wanted_away = case.ended is not None or (plan is not None and plan.members + plan.spares == 0)
    if seen.state is PodState.LEAVING and (wanted_away or (plan is not None and seen.member in plan.release)):
        return PodObserved(seen.member, seen.node, PodState.RUNNING)
    return seen


def _pod_observed(pod: Pod) -> PodObserved:
    state, reason = state_of(pod)
    return PodObserved(pod.metadata.name, pod.spec.node_name, state, reason, ended_by(pod))


# After the end: the pods end by themselves, what is left is removed, and after its time the job itself.
#
# Of nodes the plan is carried out as before: a faulty one is faulty still, and somebody may return it.


def finish(case: Case) -> Decision:
    """Nothing is created any more; logs are kept until the job goes."""
    nodes = cordons(case)
    if case.job is not None:
        life_s = case.job.spec.ttl_after_finished.total_seconds()
        if case.now >= case.ended_at + life_s:
            return Decision((*nodes, DeleteJob()), f"its {life_s:g} s after the end are over")
        going_at = case.ended_at + life_s
    else:
        going_at = None
    actions: list[Action] = [*nodes, *removed(BUDGET, case.observed.budgets)]
    roll, waits = case.roll, [] if going_at is None else [going_at]
    lingering = [*roll.live, *roll.stranded, *roll.released]
    if lingering and case.now >= case.ended_at + LINGERING_S:
        actions += [delete(case, pod, "the job is over") for pod in lingering]
    elif lingering:
        waits.append(case.ended_at + LINGERING_S)
    actions += force(case, roll.leaving, "the job is over and its node cannot let it go")
    requeue = min(waits) - case.now if waits else None
    return Decision(tuple(actions), f"the job is over: {case.ended}", requeue)
