"""Kubernetes objects: the names Holdfast writes on them, the fields it reads, and where the API server keeps them.

Only the fields that are used are decoded, straight from the stream: a full model of a pod takes 15 times the
memory and 40 times the time. Names are Kubernetes' own. An object may have 1.5 MB, and those of all namespaces are
kept: of what users write freely only our own is kept, and of a job what kubectl was given, as far as it is short.
Timestamps stay text (RFC 3339, UTC) until somebody compares them; where there is none the API server says null.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

import msgspec

from holdfast.api.gpus import Claim, DeviceClass
from holdfast.api.interventionspec import InterventionStatus
from holdfast.api.jobstatus import Condition, TrainingJobStatus
from holdfast.api.metadata import API_VERSION
from holdfast.api.remediation import RemediationStatus

SPEC_BYTES_MAX: Final = 64 * 1024  # as JSON; a job with its template has about 2 KB

# The names Holdfast writes on objects. They are promises: people and policies select by them. Those on a node that
# was taken out of service are in `holdfast.api.cordon`.
FINALIZER = "holdfast.dev/wind-up"
JOB_LABEL = "holdfast.dev/job"
MEMBER_LABEL = "holdfast.dev/member"
CHECK_LABEL = "holdfast.dev/policy-check"  # on the pod that tries a changed policy of that job; it is no member
CHANGE = "holdfast.dev/change"  # annotation of such a pod: digest of the policy that it tries
MADE_FROM = "holdfast.dev/made-from"  # annotation: digest of what a service or budget was made from
QUICK_ENDS = "holdfast.dev/quick-ends"  # annotation: how many pods in a row had ended quickly before this one
AVOIDS = "holdfast.dev/avoids"  # annotation: host names a pod was made to keep away from
REFUSED_BY = "holdfast.dev/refused-by"  # annotation: host names that had just refused the job a pod
EDITION = "holdfast.dev/edition"  # annotation: digest of the template a pod was made of
TRAINER_NAME = (
    "holdfast.dev/trainer"  # annotation: the container that runs the launcher, where its name is another
)
ROLL_TO = "holdfast.dev/roll-to"  # annotation of a job: the edition that a Restart asked all its pods to be of
SHM_SIZE = "holdfast.dev/shm-size"  # annotation a user sets on the template: the size limit of /dev/shm
HOSTNAME_LABEL = "kubernetes.io/hostname"
OUR_PREFIX = "holdfast.dev/"
# Labels a user gives a job for Kueue. Source: https://kueue.sigs.k8s.io/docs/reference/labels-and-annotations/
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
QUEUE_PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"


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


class JobMetadata(Metadata, frozen=True, gc=False):
    """What Kueue is told is there too."""

    def __post_init__(self) -> None:
        _keep_ours(self, "annotations", self.annotations)
        _keep_ours(self, "labels", self.labels, (QUEUE_LABEL, QUEUE_PRIORITY_LABEL))


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
    restart_policy: str = ""


class Gate(Object, frozen=True, gc=False):
    name: str = ""


class PodSpec(Object, frozen=True, gc=False):
    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: Resources = Resources()
    priority: int | None = None
    scheduling_gates: tuple[Gate, ...] = ()


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

    metadata: JobMetadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")
    oversize: int = 0

    def __post_init__(self) -> None:
        if (size := len(memoryview(self.spec))) > SPEC_BYTES_MAX:
            msgspec.structs.force_setattr(self, "oversize", size)
            msgspec.structs.force_setattr(self, "spec", msgspec.Raw(b"{}"))
        _keep_copies(self)

    def recorded(self) -> TrainingJobStatus:
        """The status as it was last written: what was said once is not said again."""
        return TrainingJobStatus.decode(_plain(self.status))


class Intervention(Object, frozen=True, gc=False):
    """What an on-call engineer asks for, of one job."""

    metadata: Metadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")

    def __post_init__(self) -> None:
        _keep_copies(self)

    def recorded(self) -> InterventionStatus:
        """The status as it was last written."""
        return InterventionStatus.decode(_plain(self.status))


class Remediation(Object, frozen=True, gc=False):
    """A NodeRemediation. Only few nodes are faulty at a time, so that spec and status are kept as they are."""

    metadata: Metadata
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}

    def recorded(self) -> RemediationStatus:
        """What whoever acts said of it."""
        return RemediationStatus.decode(self.status)


class RequestStatus(Object, frozen=True, gc=False):
    conditions: tuple[Condition, ...] = ()


class CapacityRequest(Object, frozen=True, gc=False):
    """A ProvisioningRequest of a job."""

    metadata: Metadata
    status: RequestStatus = RequestStatus()


class Owned(Object, frozen=True, gc=False):
    """A service or disruption budget of a job: its annotations say what it was made from, its spec what became of
    it. There are two for each job, so that the whole spec costs nothing; it is only compared.
    """

    metadata: Metadata
    spec: dict[str, Any] = {}


class Bare(Object, frozen=True, gc=False):
    """What is made and deleted, and not looked at."""

    metadata: Metadata


class ResourceClaim(Object, frozen=True, gc=False):
    """Devices that pods share."""

    metadata: Metadata
    spec: Claim = Claim()


class ClaimOfEach(Object, frozen=True, gc=False):
    spec: Claim = Claim()


class ResourceClaimTemplate(Object, frozen=True, gc=False):
    """Devices that each pod gets of its own."""

    metadata: Metadata
    spec: ClaimOfEach = ClaimOfEach()


class NamedDeviceClass(Object, frozen=True, gc=False):
    metadata: Metadata
    spec: DeviceClass = DeviceClass()


class DeviceClasses(Object, frozen=True, gc=False):
    """All of a cluster."""

    items: tuple[NamedDeviceClass, ...] = ()


def _keep_ours(metadata: Metadata, field: str, held: dict[str, str], also: tuple[str, ...] = ()) -> None:
    ours = {name: text for name, text in held.items() if name.startswith(OUR_PREFIX) or name in also}
    if len(ours) != len(held):
        msgspec.structs.force_setattr(metadata, field, ours)


def _keep_copies(read: Job | Intervention) -> None:
    """What is kept as it came is a view of the whole page, of which nothing could be let go."""
    msgspec.structs.force_setattr(read, "spec", read.spec.copy())
    msgspec.structs.force_setattr(read, "status", read.status.copy())


def _plain(status: msgspec.Raw) -> object:
    try:
        return msgspec.json.decode(status)
    except msgspec.MsgspecError:
        return None


# Where the API server keeps them.

T = TypeVar("T")

HOLDFAST = f"/apis/{API_VERSION}"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@dataclass(frozen=True)
class Resource(Generic[T]):
    """One kind. `selector` is the label that the objects looked at carry, empty for all of them."""

    prefix: str
    plural: str
    kind: str
    shape: type[T]
    selector: str = ""
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        """Of the objects of a namespace, or of all; of one object; of a part of it."""
        where = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{self.prefix}{where}/{self.plural}" + (f"/{name}" if name else "") + (f"/{sub}" if sub else "")


JOBS = Resource(HOLDFAST, "trainingjobs", "TrainingJob", Job)
INTERVENTIONS = Resource(HOLDFAST, "interventions", "Intervention", Intervention)
REMEDIATIONS = Resource(HOLDFAST, "noderemediations", "NodeRemediation", Remediation, namespaced=False)
PODS = Resource("/api/v1", "pods", "Pod", Pod, selector=JOB_LABEL)
CHECKS = Resource("/api/v1", "pods", "Pod", Pod, selector=CHECK_LABEL)
ACCOUNTS = Resource("/api/v1", "serviceaccounts", "ServiceAccount", Bare)
ROLES = Resource(RBAC, "roles", "Role", Bare)
BINDINGS = Resource(RBAC, "rolebindings", "RoleBinding", Bare)
NODES = Resource("/api/v1", "nodes", "Node", Node, namespaced=False)
SERVICES = Resource("/api/v1", "services", "Service", Owned, selector=JOB_LABEL)
BUDGETS = Resource("/apis/policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", Owned, selector=JOB_LABEL)
# Since 1.34. Source: https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
DEVICES = "/apis/resource.k8s.io/v1"
CLAIMS = Resource(DEVICES, "resourceclaims", "ResourceClaim", ResourceClaim)
CLAIM_TEMPLATES = Resource(DEVICES, "resourceclaimtemplates", "ResourceClaimTemplate", ResourceClaimTemplate)
DEVICE_CLASSES = Resource(DEVICES, "deviceclasses", "DeviceClassList", DeviceClasses, namespaced=False)
POD_TEMPLATES = Resource("/api/v1", "podtemplates", "PodTemplate", Owned, selector=JOB_LABEL)


def capacity_requests(api: str) -> Resource[CapacityRequest]:
    """Provisioning requests in the version the API server has, such as `autoscaling.x-k8s.io/v1`."""
    return Resource(
        f"/apis/{api}", "provisioningrequests", "ProvisioningRequest", CapacityRequest, selector=JOB_LABEL
    )


# Timestamps.


def seconds_of(text: str | None) -> float | None:
    """Wall seconds, None when there is no timestamp or it is not one."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def text_of(seconds: float) -> str:
    """The timestamp of `seconds`, in whole seconds: a fraction is cut off."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def precise_text_of(seconds: float) -> str:
    """With microseconds, as Kubernetes wants the times of a Lease."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
