"""What the doctor looks at in a cluster: plain data, each fact there or `Unseen`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.api.standing import Standing
from holdfast.cli.cluster.record import JobRecord
from holdfast.cli.cluster.rights import Right
from holdfast.cli.doctor.finding import Unseen

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Workload:
    """Of a kind that makes pods: those `desired` and `ready`. None of `Facts` means there is none."""

    desired: int
    ready: int


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod of one of our workloads. `trouble` is why it does not run, empty when it does."""

    name: str
    node: str
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """The operator's lease. `age_s` is None when it was never renewed."""

    holder: str
    age_s: float | None
    length_s: float


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node. `cordon` is what we wrote on it, None when we did not take it out of service; `job` took it out."""

    name: str
    cordon: str | None = None
    job: str = ""


@dataclass(frozen=True, slots=True)
class InterventionSeen:
    """An intervention without an outcome."""

    name: str
    action: str
    age_s: float


@dataclass(frozen=True, slots=True)
class Health:
    """What the watchdog says of itself: `trouble` is why it cannot decide and record."""

    trouble: str | None
    standing: Standing = Standing.LEADING


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything seen of one installation in `namespace`."""

    server: str
    namespace: str
    version: str | Unseen
    definitions: Mapping[str, Document | None] | Unseen
    """By plural name; None is not installed."""
    expected: Mapping[str, Document]
    """Those of this version of Holdfast; empty when it does not know them."""
    rights: Mapping[Right, bool] | Unseen
    operator: Workload | Unseen | None
    operator_pods: tuple[PodSeen, ...] | Unseen = ()
    lease: LeaseSeen | Unseen | None
    watchdog: Workload | Unseen | None
    watchdog_pods: tuple[PodSeen, ...] | Unseen = ()
    redis: Workload | Unseen | None = None
    """None where the watchdogs use another Redis than the chart's."""
    redis_pods: tuple[PodSeen, ...] | Unseen = ()
    health: Health | Unseen
    jobs_read: int | Unseen
    """How many jobs the watchdog told of, read from end to end."""
    agents: Workload | Unseen | None
    agent_pods: tuple[PodSeen, ...] | Unseen = ()
    nodes: tuple[NodeSeen, ...] | Unseen = ()
    jobs: tuple[JobRecord, ...] | Unseen = ()
    pending: tuple[InterventionSeen, ...] | Unseen = ()
    groups: frozenset[str] | Unseen = field(default_factory=frozenset)
    """API groups that the server knows."""
