"""Nodes to take out of service and to return. A node that this job did not cordon is never touched."""

from holdfast.api.cordon import CORDON_TAINT, CORDONED_BY, read_cordoned_by
from holdfast.operator.action import Action, Cordon, Uncordon
from holdfast.operator.case import Case
from holdfast.operator.objects import Node
from holdfast.operator.observed import Cordoning


def cordons(case: Case) -> tuple[Action, ...]:
    """What makes the nodes' marks match the plan."""
    plan = case.plan
    if plan is None or case.terms.cordoning is Cordoning.CONSUME:
        return ()
    actions: list[Action] = []
    for order in plan.cordon:
        node = case.node_of(order.node)
        if node is not None and not _is_cordoned(node):
            actions.append(Cordon(order.node, order.reason, order.incident or ""))
    kept = {order.node for order in plan.cordon}
    for name in plan.returned:
        node = case.node_of(name)
        if node is not None and name not in kept and _cordoned_by(node, case.id):
            actions.append(Uncordon(name))
    return tuple(actions)


def _is_cordoned(node: Node) -> bool:
    return any(taint.key == CORDON_TAINT for taint in node.spec.taints)


def _cordoned_by(node: Node, job: str) -> bool:
    by = read_cordoned_by(node.metadata.annotations.get(CORDONED_BY))
    return by is not None and by.job == job
