"""After the end: the pods end by themselves, what is left is removed, and after its time the job itself.

Of nodes the plan is carried out as before: a faulty one is faulty still, and somebody may return it.
"""

from holdfast.operator.action import Action, DeleteJob
from holdfast.operator.belongings import BUDGET, removed
from holdfast.operator.case import Case, Decision
from holdfast.operator.cordoning import cordons
from holdfast.operator.staffing import delete, force

LINGERING_S = 60.0
"""A launcher exits within seconds of the end; a pod that still runs then does not know of it."""


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
