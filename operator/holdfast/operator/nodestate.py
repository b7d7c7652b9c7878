"""What the operator sees of a node. Unknown is a state: a node that says nothing is neither ready nor not."""

from collections.abc import Sequence

from holdfast.api.plan import NodeState
from holdfast.operator.marks import OUR_PREFIX
from holdfast.operator.objects import Condition, Node, Taint
from holdfast.operator.observed import Terms
from holdfast.operator.template import Toleration

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


def state_of(node: Node, terms: Terms, tolerations: Sequence[Toleration] | None) -> tuple[NodeState, str]:
    """The state of a node that is there, and why. `tolerations` are the pods', None when nobody can tell."""
    ready = next((each for each in node.status.conditions if each.type == "Ready"), None)
    if ready is None:
        return NodeState.UNKNOWN, "the node has no Ready condition"
    if ready.status != "True":
        return NodeState.NOT_READY, _words(ready)
    if node.spec.unschedulable:
        return NodeState.DRAINING, "somebody cordoned it"
    for taint in node.spec.taints:
        if _drains(taint, terms, tolerations):
            return NodeState.DRAINING, f"taint {taint.key}:{taint.effect}"
    return NodeState.READY, ""


def holds_nobody_off(node: Node, tolerations: Sequence[Toleration] | None) -> bool:
    """Whether pods that tolerate so much are sent to the node, whatever it is marked with."""
    forbidding = (taint for taint in node.spec.taints if taint.effect != "PreferNoSchedule")
    return all(any(_matches(each, taint) for each in tolerations or ()) for taint in forbidding)


def _words(ready: Condition) -> str:
    return ready.message or ready.reason or f"Ready is {ready.status}"


def _drains(taint: Taint, terms: Terms, tolerations: Sequence[Toleration] | None) -> bool:
    if taint.key.startswith(OUR_PREFIX) or taint.key in BY_CONDITION or taint.effect == "PreferNoSchedule":
        return False
    if taint.key in terms.maintenance_taints or _departs(taint):
        return True
    if taint.effect != "NoExecute" or tolerations is None:
        return False
    return not any(_tolerates(each, taint) for each in tolerations)


def _departs(taint: Taint) -> bool:
    """Tolerating it does not help: the machine goes all the same."""
    return taint.key in DEPARTURES or taint.key.startswith(DEPARTURE_PREFIX)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether pods may stay for good; tolerating a taint for some seconds only puts off their eviction.

    Source: https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    """
    return toleration.toleration_seconds is None and _matches(toleration, taint)


def _matches(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return (toleration.key, toleration.value) == (taint.key, taint.value)
