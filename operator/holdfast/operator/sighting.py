"""What the watchdog is told of nodes and pods: all of it each time; whoever sends it leaves out what was said."""

from holdfast.api.plan import PodObserved, PodState
from holdfast.operator.action import Tell
from holdfast.operator.case import Case
from holdfast.operator.objects import Pod
from holdfast.operator.podstate import ended_by, state_of


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
