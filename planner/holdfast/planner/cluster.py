"""The machines: GPUs in nodes, what joins them, and what a GPU costs. Rates are bytes/s in one direction."""

import math

import msgspec

from holdfast.api.errors import InvalidInput, Problem
from holdfast.planner.bounds import not_negative, positive
from holdfast.planner.gpu import Gpu
from holdfast.planner.quantity import shown


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`nvlink_domain` is how many GPUs reach each other at the GPU's NVLink rate; 0: as many as its catalogue
    says, or those of a node. Of GPUs without any it is 1.

    `network` is each GPU's share of its node's network, at the rate that is reached, as where each GPU has a
    rail of its own. `pod` is how many GPUs reach each other so (0: all); beyond it they share 1 /
    `oversubscription` of it. `latency_s` and `nvlink_latency_s` are of one message. `host` is from a GPU to its
    node's memory, `storage` what all nodes together read from storage, or write; None: it is not known, and
    nothing waits for it.
    """

    gpu: Gpu
    gpus: int
    per_node: int = 8
    nvlink_domain: int = 0
    network: float = 50e9
    latency_s: float = 10e-6
    nvlink_latency_s: float = 3e-6
    price: float | None = None  # of a GPU and hour
    host: float = 25e9
    storage: float | None = None
    pod: int = 0
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        """Raises InvalidInput."""
        problems = [
            *positive(self, "cluster", ("gpus", "per_node", "network", "host")),
            *not_negative(self, "cluster", ("latency_s", "nvlink_latency_s", "nvlink_domain", "pod")),
            *(positive(self, "cluster", ("price",)) if self.price is not None else ()),
            *(positive(self, "cluster", ("storage",)) if self.storage is not None else ()),
        ]
        if self.gpus > self.per_node and self.gpus % max(self.per_node, 1):
            problems.append(
                Problem("cluster.gpus", self.gpus, f"give a multiple of {self.per_node} GPUs per node")
            )
        if not problems and not 1.0 <= self.oversubscription <= 1e6:
            fix = "give at least 1: so many times less network leaves a pod than its GPUs have"
            problems.append(Problem("cluster.oversubscription", self.oversubscription, fix))
        if problems:
            raise InvalidInput(*problems)

    @property
    def domain(self) -> int:
        """How many GPUs are joined by NVLink."""
        return (self.nvlink_domain or self.gpu.domain or self.per_node) if self.gpu.nvlink else 1

    @property
    def peer_rate(self) -> float:
        """From a GPU to one neighbour by NVLink: of a mesh one link of all."""
        return _joined(self, 2)

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return -(-self.gpus // self.per_node)


class Reach(msgspec.Struct, frozen=True):
    """Where the members of a group of GPUs are: `size` of them, `near` of which share an NVLink domain.

    `rate` is what each of them sends and receives in a ring through all, `hop` what one sends to the next by
    itself, `port` what one sends to all others by itself, and `latency_s` what one hop takes.
    """

    size: int
    near: int
    rate: float
    hop: float
    port: float
    latency_s: float

    def __str__(self) -> str:
        rate, latency = shown(self.rate, "bytes/s"), shown(self.latency_s, "s")
        return f"{self.size} GPUs at {rate} and {latency} a message"


def reach_of(cluster: Cluster, *members: tuple[int, int]) -> Reach:
    """A group of so many GPUs, every so many of them; then of so many of those groups, every so many GPUs.

    A ring through several nodes enters each once, by as many network ports as it has members there. Of pods it
    leaves each once too, beside the rings of the GPUs between its members; an exchange sends most of what it has
    out of its pod.
    """
    members = tuple(each for each in members if each[0] > 1)
    size = math.prod(count for count, _ in members)
    if size == 1:
        return Reach(1, 1, math.inf, math.inf, math.inf, 0.0)
    near = math.prod(min(count, max(1, cluster.domain // stride)) for count, stride in members)
    nvlink, network = _joined(cluster, near), cluster.network
    if near >= size:
        return Reach(size, size, nvlink, nvlink, nvlink, cluster.nvlink_latency_s)
    rate, port = network * near, network
    if near > 1:
        rate = min(rate, nvlink)
    spans = math.prod(members[-1])
    if 0 < cluster.pod < spans:
        leaves = cluster.pod * network / cluster.oversubscription
        rate, port = min(rate, leaves / min(spans // size, cluster.pod)), network / cluster.oversubscription
    return Reach(size, near, rate, min(rate, network), port, cluster.latency_s)


def _joined(cluster: Cluster, near: int) -> float:
    """The rate of NVLink among so many: of a mesh the links to those only."""
    gpu, others = cluster.gpu, cluster.domain - 1
    return gpu.nvlink * min(1.0, (near - 1) / others) if gpu.mesh and near > 1 and others else gpu.nvlink
