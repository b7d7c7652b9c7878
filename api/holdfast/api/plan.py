"""The plan: the desired state of the cluster, shown to the operator (embedded: to the local cluster)."""

from enum import StrEnum

import msgspec


class NodeOrder(msgspec.Struct, frozen=True):
    """A node to keep away from, and why."""

    node: str
    reason: str
    incident: str | None = None


class Plan(msgspec.Struct, frozen=True, tag=True):
    """Desired state. `number` grows with every change.

    `members` and `spares` are how many launchers should exist in and beside the round; `avoid` are nodes to
    place nothing on; `cordon` are nodes to take out of service (a subset of `avoid`'s names); `returned` are
    nodes to put back into service.
    """

    job: str
    number: int
    members: int
    spares: int
    avoid: tuple[NodeOrder, ...] = ()
    cordon: tuple[NodeOrder, ...] = ()
    returned: tuple[str, ...] = ()


class NodeState(StrEnum):
    """What the operator sees of a node."""

    READY = "Ready"
    NOT_READY = "NotReady"
    GONE = "Gone"
    UNKNOWN = "Unknown"


class NodeObserved(msgspec.Struct, frozen=True, tag=True):
    """Operator to watchdog: a node's state changed."""

    node: str
    state: NodeState
    reason: str = ""


class OperatorHello(msgspec.Struct, frozen=True, tag=True):
    """First message of the operator's connection."""

    job: str


FromOperator = OperatorHello | NodeObserved
ToOperator = Plan
