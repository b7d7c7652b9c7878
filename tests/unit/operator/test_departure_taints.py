"""A node that its cloud or an autoscaler is about to take away is draining, whoever tolerates the mark."""

import pytest
from operator_builders import node

from holdfast.api.plan import NodeState
from holdfast.operator.decide.nodes import state_of
from holdfast.operator.decide.observed import Options
from holdfast.operator.decide.template import Toleration
from holdfast.operator.kube.objects import Taint

OPTIONS = Options("w:1", "image")


@pytest.mark.parametrize(
    "key",
    [
        "aws-node-termination-handler/spot-itn",
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/asg-lifecycle-termination",
        "cloud.google.com/impending-node-termination",
        "node.cloudprovider.kubernetes.io/shutdown",
        "node.kubernetes.io/out-of-service",
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
    ],
)
@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
@pytest.mark.parametrize("tolerations", [(), (Toleration(operator="Exists"),)], ids=["", "tolerated"])
def test_a_node_marked_for_departure_is_draining(
    key: str, effect: str, tolerations: tuple[Toleration, ...]
) -> None:
    state, why = state_of(node("n1", taints=[Taint(key, effect)]), OPTIONS, tolerations)
    assert (state, why) == (NodeState.DRAINING, f"taint {key}:{effect}")


@pytest.mark.parametrize(
    "taint",
    [
        pytest.param(Taint("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"), id="only a candidate"),
        pytest.param(
            Taint("kubernetes.azure.com/scalesetpriority", "NoSchedule", "spot"), id="a spot node for good"
        ),
        pytest.param(Taint("cloud.google.com/gke-spot", "NoSchedule", "true"), id="a spot node of Google's"),
        pytest.param(Taint("karpenter.sh/unregistered", "NoSchedule"), id="a node that is about to join"),
        pytest.param(Taint("nvidia.com/gpu", "NoSchedule"), id="a GPU node"),
    ],
)
def test_a_node_that_is_only_special_is_ready(taint: Taint) -> None:
    assert state_of(node("n1", taints=[taint]), OPTIONS, ()) == (NodeState.READY, "")
