"""What the doctor says, and what it looks at in a cluster for it: plain data, each fact there or `Unseen`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from holdfast.api.standing import Standing

if TYPE_CHECKING:  # of this machine only what is said is read
    from holdfast.cli.cluster.kubeapi import Right
    from holdfast.cli.cluster.record import JobRecord

Document = dict[str, Any]


class Level(StrEnum):
    """How it stands."""

    OK = "ok"
    WARN = "warn"  # it works; somebody should look. Also: it could not be seen
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's: what was looked at, how it is, what to do about it."""

    level: Level
    what: str
    says: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Unseen:
    """A fact that could not be gathered, and why. It is Unknown: neither well nor ill."""

    reason: str


NOT_LOOKED_AT = Unseen("it was not looked at")


def unseen(what: str, fact: Unseen) -> Finding:
    """How a fact that could not be gathered is told."""
    return Finding(Level.WARN, what, f"not known: {fact.reason}", "ask somebody who may see it")


def findings_text(findings: Sequence[Finding]) -> str:
    """One line per finding, what to do about it below it."""
    width = max((len(each.what) for each in findings), default=0)
    lines = []
    for each in findings:
        lines.append(f"{each.level.value:<4}  {each.what.ljust(width)}  {each.says}".rstrip())
        if each.fix and each.level is not Level.OK:
            lines.append(f"      {' ' * width}  -> {each.fix}")
    return "\n".join(lines)


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
    definitions: Mapping[str, Document | None] | Unseen = NOT_LOOKED_AT
    """By plural name; None is not installed."""
    expected: Mapping[str, Document] = field(default_factory=dict)
    """Those of this version of Holdfast; empty when it does not know them."""
    rights: "Mapping[Right, bool] | Unseen" = NOT_LOOKED_AT
    operator: Workload | Unseen | None = NOT_LOOKED_AT
    operator_pods: tuple[PodSeen, ...] | Unseen = ()
    lease: LeaseSeen | Unseen | None = NOT_LOOKED_AT
    watchdog: Workload | Unseen | None = NOT_LOOKED_AT
    watchdog_pods: tuple[PodSeen, ...] | Unseen = ()
    redis: Workload | Unseen | None = None
    """None where the watchdogs use another Redis than the chart's."""
    redis_pods: tuple[PodSeen, ...] | Unseen = ()
    health: Health | Unseen = NOT_LOOKED_AT
    jobs_read: int | Unseen = NOT_LOOKED_AT
    """How many jobs the watchdog told of, read from end to end."""
    agents: Workload | Unseen | None = NOT_LOOKED_AT
    agent_pods: tuple[PodSeen, ...] | Unseen = ()
    nodes: tuple[NodeSeen, ...] | Unseen = ()
    jobs: "tuple[JobRecord, ...] | Unseen" = ()
    pending: tuple[InterventionSeen, ...] | Unseen = ()
    groups: frozenset[str] | Unseen = frozenset()
    """API groups that the server knows."""
