"""What a node's labels say of its GPUs and of how it is paid for."""

import pytest

from holdfast.api.policy import Capacity, Offer
from holdfast.operator.decide.offers import offer_of

SPOT, ON_DEMAND = Capacity.SPOT, Capacity.ON_DEMAND


@pytest.mark.parametrize(
    ("labels", "offer"),
    [
        ({}, None),
        ({"kubernetes.io/hostname": "a"}, None),
        ({"nvidia.com/gpu.product": "H100"}, Offer("H100")),
        ({"cloud.google.com/gke-accelerator": "l4", "cloud.google.com/gke-spot": "true"}, Offer("l4", SPOT)),
        ({"karpenter.sh/capacity-type": "on-demand"}, Offer(capacity=ON_DEMAND)),
        ({"karpenter.sh/capacity-type": "spot"}, Offer(capacity=SPOT)),
        ({"karpenter.sh/capacity-type": "reserved"}, None),
        ({"eks.amazonaws.com/capacityType": "ON_DEMAND"}, Offer(capacity=ON_DEMAND)),
        ({"eks.amazonaws.com/capacityType": "SPOT"}, Offer(capacity=SPOT)),
        ({"kubernetes.azure.com/scalesetpriority": "spot"}, Offer(capacity=SPOT)),
        ({"cloud.google.com/gke-preemptible": "true"}, Offer(capacity=SPOT)),
    ],
)  # fmt: skip
def test_labels_say_what_a_node_is(labels: dict[str, str], offer: Offer | None) -> None:
    assert offer_of(labels) == offer
