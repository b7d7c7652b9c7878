"""Where a node is, by its labels: the switch, the rack and whatever else it shares with the nodes beside it."""

from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.place import PLACES_MAX, Place

# By label, what it names. Sources:
# https://docs.nvidia.com/topograph/engines/kubernetes (network.topology.nvidia.com),
# https://docs.nvidia.com/topograph/v1.0.0/reference/node-labels-and-annotations (fabric.topograph.run),
# https://docs.aws.amazon.com/eks/latest/userguide/ml-workload-topology.html (topology.k8s.aws)
KNOWN: Final[Mapping[str, str]] = {
    "network.topology.nvidia.com/leaf": "switch",
    "network.topology.nvidia.com/spine": "spine",
    "network.topology.nvidia.com/core": "core",
    "network.topology.nvidia.com/accelerator": "nvlink-domain",
    "fabric.topograph.run/tier-0": "switch",
    "fabric.topograph.run/tier-1": "spine",
    "fabric.topograph.run/tier-2": "core",
    "topology.k8s.aws/network-node-layer-3": "switch",
    "topology.k8s.aws/network-node-layer-2": "spine",
    "topology.k8s.aws/network-node-layer-1": "core",
    "topology.kubernetes.io/zone": "zone",
}


def places_of(
    labels: Mapping[str, str], pack: Sequence[str], told: Sequence[tuple[str, str]]
) -> tuple[Place, ...]:
    """The places of a node with these labels, sorted. Labels by which a job packs its members name one as well,
    called by the last part of the label; `told` are labels and what they name, and come before all others.
    """
    named = {**{label: label.rpartition("/")[2] for label in pack}, **KNOWN, **dict(told)}
    found = {Place(kind, labels[label]) for label, kind in named.items() if labels.get(label)}
    return tuple(sorted(found)[:PLACES_MAX])


def read_labels(text: str) -> tuple[tuple[str, str], ...]:
    """From LABEL=KIND, separated by commas: example.com/rack=rack. Raises InvalidInput."""
    pairs = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        label, equals, kind = part.rpartition("=")
        if not equals or not label or not kind.replace("-", "").isalnum():
            fix = "write LABEL=KIND, such as example.com/rack=rack or example.com/rail-0=rail"
            raise InvalidInput(Problem("--place-labels", part, fix))
        pairs.append((label, kind))
    return tuple(pairs)
