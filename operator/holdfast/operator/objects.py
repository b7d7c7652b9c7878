"""What the operator reads of Kubernetes objects: only the fields it uses, decoded straight from the stream.

A full model of a pod takes 15 times the memory and 40 times the time to decode. Names are Kubernetes' own. An
object may have 1.5 MB, and those of all namespaces are kept: of what users write freely only our own is kept.
Timestamps stay text (RFC 3339, UTC) until somebody compares them; where there is none the API server says null.
"""

from typing import Any, Final

import msgspec

from holdfast.operator.marks import OUR_PREFIX

SPEC_BYTES_MAX: Final = 64 * 1024  # as JSON; a job with its template has about 2 KB


class Object(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base of everything decoded here. Fields that the API server leaves out have their zero value."""


class OwnerReference(Object, frozen=True, gc=False):
    uid: str = ""
    controller: bool = False


class Metadata(Object, frozen=True, gc=False):
    """Labels and annotations are those of Holdfast."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()

    def __post_init__(self) -> None:
        _keep_ours(self, "annotations", self.annotations)
        _keep_ours(self, "labels", self.labels)


class NodeMetadata(Metadata, frozen=True, gc=False):
    """The labels are all there: they say where the node is."""

    def __post_init__(self) -> None:
        _keep_ours(self, "annotations", self.annotations)


class Condition(Object, frozen=True, gc=False):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class Waiting(Object, frozen=True, gc=False):
    reason: str = ""
    message: str = ""


class RunningSince(Object, frozen=True, gc=False):
    started_at: str | None = None


class Terminated(Object, frozen=True, gc=False):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class ContainerState(Object, frozen=True, gc=False):
    waiting: Waiting | None = None
    running: RunningSince | None = None
    terminated: Terminated | None = None


class ContainerStatus(Object, frozen=True, gc=False):
    name: str
    state: ContainerState = ContainerState()


class Resources(Object, frozen=True, gc=False):
    limits: dict[str, str] = {}


class Container(Object, frozen=True, gc=False):
    name: str
    image: str = ""
    resources: Resources = Resources()


class PodSpec(Object, frozen=True, gc=False):
    node_name: str = ""
    containers: tuple[Container, ...] = ()
    priority: int | None = None


class PodStatus(Object, frozen=True, gc=False):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(Object, frozen=True, gc=False):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Taint(Object, frozen=True, gc=False):
    key: str
    effect: str
    value: str = ""


class NodeSpec(Object, frozen=True, gc=False):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(Object, frozen=True, gc=False):
    conditions: tuple[Condition, ...] = ()


class Node(Object, frozen=True, gc=False):
    metadata: NodeMetadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Job(Object, frozen=True, gc=False):
    """A TrainingJob. Spec and status stay as they came: the one is read as a whole, the other compared.

    `oversize` is the number of bytes of a spec that is too long to be kept.
    """

    metadata: Metadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")
    oversize: int = 0

    def __post_init__(self) -> None:
        if (size := len(memoryview(self.spec))) > SPEC_BYTES_MAX:
            msgspec.structs.force_setattr(self, "oversize", size)
            msgspec.structs.force_setattr(self, "spec", msgspec.Raw(b"{}"))
        _keep_copies(self)


class Asked(Object, frozen=True, gc=False):
    """An Intervention."""

    metadata: Metadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")

    def __post_init__(self) -> None:
        _keep_copies(self)


class Owned(Object, frozen=True, gc=False):
    """A service or disruption budget of a job: its annotations say what it was made from, its spec what became of
    it. There are two for each job, so that the whole spec costs nothing; it is only compared.
    """

    metadata: Metadata
    spec: dict[str, Any] = {}


def _keep_ours(metadata: Metadata, field: str, held: dict[str, str]) -> None:
    ours = {name: text for name, text in held.items() if name.startswith(OUR_PREFIX)}
    if len(ours) != len(held):
        msgspec.structs.force_setattr(metadata, field, ours)


def _keep_copies(read: Job | Asked) -> None:
    """What is kept as it came is a view of the whole page, of which nothing could be let go."""
    msgspec.structs.force_setattr(read, "spec", read.spec.copy())
    msgspec.structs.force_setattr(read, "status", read.status.copy())
