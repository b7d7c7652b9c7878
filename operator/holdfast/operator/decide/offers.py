"""What a node's labels say of its GPUs and of how it is paid for: by this the ledger finds its price."""

from collections.abc import Mapping
from typing import Final

from holdfast.api.policy import Capacity, Offer

# Source: https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/getting-started.html (GPU feature
# discovery), https://cloud.google.com/kubernetes-engine/docs/how-to/gpus
GPU_LABELS: Final = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator")
# The values, in lower case, that mean a spot node. That it is on demand only labels of every node can say.
# Source: https://karpenter.sh/docs/concepts/nodepools/ (karpenter.sh/capacity-type),
# https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html (eks.amazonaws.com/capacityType)
OF_EVERY_NODE: Final = {"karpenter.sh/capacity-type": ("spot",), "eks.amazonaws.com/capacityType": ("spot",)}
# Source: https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms,
# https://learn.microsoft.com/azure/aks/spot-node-pool
OF_SPOT_NODES: Final = {
    "cloud.google.com/gke-spot": ("true",),
    "cloud.google.com/gke-preemptible": ("true",),
    "kubernetes.azure.com/scalesetpriority": ("spot",),
}
ON_DEMAND: Final = ("on-demand", "on_demand")


def offer_of(labels: Mapping[str, str]) -> Offer | None:
    """What the node is; None where its labels say nothing of it."""
    gpu = next((labels[each] for each in GPU_LABELS if labels.get(each)), "")
    capacity = _capacity(labels)
    return Offer(gpu, capacity) if gpu or capacity is not None else None


def _capacity(labels: Mapping[str, str]) -> Capacity | None:
    for label, spot in (*OF_EVERY_NODE.items(), *OF_SPOT_NODES.items()):
        if labels.get(label, "").lower() in spot:
            return Capacity.SPOT
    if any(labels.get(label, "").lower() in ON_DEMAND for label in OF_EVERY_NODE):
        return Capacity.ON_DEMAND
    return None
