"""Where a pod fits: the part of Kubernetes' scheduling that a training job leans on. Pure.

Respected: unschedulable nodes, taints that forbid scheduling and their tolerations, nodeSelector, required node
affinity, required anti-affinity per host, the number of pods, and extended resources such as nvidia.com/gpu.
Not looked at: cpu, memory, preferences, spread, priority. A pod fits a node here whose memory it would overflow.
Source: https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Manifest = Mapping[str, Any]
Labels = Mapping[str, str]
HOSTNAME = "kubernetes.io/hostname"
FORBIDS = ("NoSchedule", "NoExecute")
IGNORED = ("cpu", "memory", "ephemeral-storage")


@dataclass(frozen=True)
class Tenant:
    """What a pod takes of its node, and what later pods are compared with."""

    namespace: str
    labels: Labels
    spec: Manifest
    needs: Mapping[str, int]


@dataclass
class Room:
    """A node and who is on it."""

    name: str
    labels: Labels
    spec: Manifest
    allocatable: Mapping[str, int]
    tenants: dict[str, Tenant] = field(default_factory=dict)


def tenant_of(pod: Manifest) -> Tenant:
    metadata, spec = pod["metadata"], pod["spec"]
    needs: dict[str, int] = {}
    for container in spec.get("containers", ()):
        requests = container.get("resources", {}).get("requests", {})
        for resource, amount in requests.items():
            if resource not in IGNORED:
                needs[resource] = needs.get(resource, 0) + int(amount)
    asked = {key: spec[key] for key in ("affinity", "tolerations", "nodeSelector") if key in spec}
    return Tenant(metadata.get("namespace", ""), metadata.get("labels", {}), asked, needs)


def room_of(node: Manifest) -> Room:
    metadata = node["metadata"]
    allocatable = node.get("status", {}).get("allocatable", {})
    amounts = {name: int(amount) for name, amount in allocatable.items() if name not in IGNORED}
    return Room(metadata["name"], metadata.get("labels", {}), node.get("spec", {}), amounts)


class Rooms:
    """All nodes, in turn: a search goes on where the last one ended, so filling n nodes takes n looks."""

    def __init__(self) -> None:
        self.rooms: dict[str, Room] = {}
        self._order: list[str] = []
        self._next = 0

    def put(self, room: Room) -> None:
        """Add the node or take over its new manifest; who is on it stays."""
        known = self.rooms.get(room.name)
        if known is None:
            self._order.append(room.name)
        else:
            room.tenants = known.tenants
        self.rooms[room.name] = room

    def remove(self, name: str) -> None:
        if self.rooms.pop(name, None) is not None:
            self._order.remove(name)

    def find(self, tenant: Tenant) -> Room | None:
        """The next node in turn that the pod fits, or None."""
        for room in self._in_turn():
            if fits(tenant, room):
                return room
        return None

    def _in_turn(self) -> Iterator[Room]:
        count = len(self._order)
        start = self._next
        for offset in range(count):
            self._next = (start + offset + 1) % count
            yield self.rooms[self._order[(start + offset) % count]]


def fits(tenant: Tenant, room: Room) -> bool:
    return (
        _has_space(tenant, room)
        and not room.spec.get("unschedulable", False)
        and _tolerates(tenant.spec, room.spec.get("taints", ()))
        and _is_selected(tenant.spec, room)
        and not _is_repelled(tenant, room)
    )


def _has_space(tenant: Tenant, room: Room) -> bool:
    if len(room.tenants) >= room.allocatable.get("pods", 110):
        return False
    for resource, amount in tenant.needs.items():
        taken = sum(each.needs.get(resource, 0) for each in room.tenants.values())
        if taken + amount > room.allocatable.get(resource, 0):
            return False
    return True


def _tolerates(spec: Manifest, taints: Sequence[Manifest]) -> bool:
    tolerations = spec.get("tolerations", ())
    return all(
        taint["effect"] not in FORBIDS or any(_matches_taint(each, taint) for each in tolerations)
        for taint in taints
    )


def _matches_taint(toleration: Manifest, taint: Manifest) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return bool(
        toleration.get("key") == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or "")
    )


def _is_selected(spec: Manifest, room: Room) -> bool:
    selector = spec.get("nodeSelector", {})
    if any(room.labels.get(key) != value for key, value in selector.items()):
        return False
    required = (
        spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    )
    return required is None or any(_is_met(term, room) for term in required["nodeSelectorTerms"])


def _is_met(term: Manifest, room: Room) -> bool:
    fields = {"metadata.name": room.name}
    return all(_holds(each, room.labels) for each in term.get("matchExpressions", ())) and all(
        _holds(each, fields) for each in term.get("matchFields", ())
    )


def _holds(expression: Manifest, labels: Labels) -> bool:
    value = labels.get(expression["key"])
    values = expression.get("values", ())
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(values[0])
        case "Lt":
            return value is not None and int(value) < int(values[0])
        case other:
            raise ValueError(f"node selector operator {other!r} is not one of Kubernetes'")


def _is_repelled(tenant: Tenant, room: Room) -> bool:
    """Anti-affinity holds both ways: the pod's terms against those there, and theirs against the pod."""
    return any(_repels(tenant, each) or _repels(each, tenant) for each in room.tenants.values())


def _repels(tenant: Tenant, other: Tenant) -> bool:
    affinity = tenant.spec.get("affinity", {}).get("podAntiAffinity", {})
    for term in affinity.get("requiredDuringSchedulingIgnoredDuringExecution", ()):
        if term["topologyKey"] != HOSTNAME:
            raise ValueError(
                f"podAntiAffinity topologyKey {term['topologyKey']!r}: only {HOSTNAME} is played here"
            )
        namespaces = term.get("namespaces") or [tenant.namespace]
        if other.namespace in namespaces and selects(term.get("labelSelector", {}), other.labels):
            return True
    return False


def selects(selector: Manifest, labels: Labels) -> bool:
    """Whether a label selector (matchLabels and matchExpressions) selects these labels."""
    wanted = selector.get("matchLabels", {})
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(each, labels) for each in selector.get("matchExpressions", ())
    )
