"""What the operator sees of a node, and which nodes it takes out of service and returns.

Unknown is a state: a node that says nothing is neither ready nor not.
"""

import re
from collections.abc import Mapping, Sequence

from holdfast.api.cordon import CORDON_TAINT, CORDONED_BY, read_cordoned_by
from holdfast.api.plan import NodeState, Plan
from holdfast.operator.decide.action import Action, Cordon, Uncordon
from holdfast.operator.decide.observed import Cordoning, Options
from holdfast.operator.decide.template import COMPARES, INTEGER, Toleration
from holdfast.operator.kube.objects import OUR_PREFIX, Node, Taint

# The node's condition says these first, and says more.
BY_CONDITION = frozenset(("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"))

# Whoever takes machines away marks a node with one of these and waits for it to be left, mostly with NoSchedule,
# which by itself moves nobody. Source: https://github.com/aws/aws-node-termination-handler,
# https://github.com/kubernetes-monitoring/kubernetes-mixin (KubeNodeUnreachable: Google's and the autoscaler's),
# https://kubernetes.io/docs/reference/labels-annotations-taints/, https://karpenter.sh/docs/concepts/disruption/
DEPARTURES = frozenset(
    (
        "cloud.google.com/impending-node-termination",
        "node.cloudprovider.kubernetes.io/shutdown",
        "node.kubernetes.io/out-of-service",
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
    )
)
DEPARTURE_PREFIX = "aws-node-termination-handler/"


def state_of(node: Node, options: Options, tolerations: Sequence[Toleration] | None) -> tuple[NodeState, str]:
    """The state of a node that is there, and why. `tolerations` are the pods', None when nobody can tell."""
    ready = next((each for each in node.status.conditions if each.type == "Ready"), None)
    if ready is None:
        return NodeState.UNKNOWN, "the node has no Ready condition"
    if ready.status != "True":
        return NodeState.NOT_READY, ready.message or ready.reason or f"Ready is {ready.status}"
    if node.spec.unschedulable:
        return NodeState.DRAINING, "somebody cordoned it"
    for taint in node.spec.taints:
        if _drains(taint, options, tolerations):
            return NodeState.DRAINING, f"taint {taint.key}:{taint.effect}"
    return NodeState.READY, ""


def holds_nobody_off(node: Node, tolerations: Sequence[Toleration] | None) -> bool:
    """Whether pods that tolerate so much are sent to the node, whatever it is marked with."""
    forbidding = (taint for taint in node.spec.taints if taint.effect != "PreferNoSchedule")
    return all(any(_matches(each, taint) for each in tolerations or ()) for taint in forbidding)


def cordons(job: str, plan: Plan | None, nodes: Mapping[str, Node], cordoning: Cordoning) -> tuple[Action, ...]:
    """What makes the nodes' marks match the plan. A node that `job` did not cordon is never touched."""
    if plan is None or cordoning is Cordoning.CONSUME:
        return ()
    actions: list[Action] = []
    for order in plan.cordon:
        node = nodes.get(order.node)
        if node is not None and all(taint.key != CORDON_TAINT for taint in node.spec.taints):
            actions.append(Cordon(order.node, order.reason, order.incident or ""))
    kept = {order.node for order in plan.cordon}
    for name in plan.returned:
        node = nodes.get(name)
        by = read_cordoned_by(node.metadata.annotations.get(CORDONED_BY)) if node is not None else None
        if by is not None and by.job == job and name not in kept:
            actions.append(Uncordon(name))
    return tuple(actions)


def _drains(taint: Taint, options: Options, tolerations: Sequence[Toleration] | None) -> bool:
    if taint.key.startswith(OUR_PREFIX) or taint.key in BY_CONDITION or taint.effect == "PreferNoSchedule":
        return False
    # Tolerating one of these does not help: the machine goes all the same.
    if taint.key in (*options.maintenance_taints, *DEPARTURES) or taint.key.startswith(DEPARTURE_PREFIX):
        return True
    if taint.effect != "NoExecute" or tolerations is None:
        return False
    # Pods may stay for good; tolerating a taint for some seconds only puts off their eviction.
    # Source: https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    return not any(each.toleration_seconds is None and _matches(each, taint) for each in tolerations)


def _matches(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    if toleration.operator in COMPARES:
        return toleration.key == taint.key and _compares(toleration, taint)
    return (toleration.key, toleration.value) == (taint.key, taint.value)


def _compares(toleration: Toleration, taint: Taint) -> bool:
    """Whether the taint's number is above (Gt) or below (Lt) the toleration's. What is no number matches nothing.
    Source: https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/ (numeric comparison)
    """
    if not re.search(INTEGER, toleration.value) or not re.search(INTEGER, taint.value):
        return False
    asked, there = int(toleration.value), int(taint.value)
    return there > asked if toleration.operator == "Gt" else there < asked
