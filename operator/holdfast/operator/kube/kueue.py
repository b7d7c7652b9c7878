"""What is read and written of Kueue: the Workload that stands for a job, and the flavors and priorities of the
cluster. Only the fields that are used; versions v1beta1 and v1beta2 have all of them.

Source: https://kueue.sigs.k8s.io/docs/reference/kueue.v1beta2/ and
https://kueue.sigs.k8s.io/docs/tasks/dev/integrate_a_custom_job/
"""

from typing import Any, Final

import msgspec

from holdfast.api.jobstatus import Condition
from holdfast.operator.kube.objects import JOB_LABEL, Metadata, Object, Resource

APIS: Final = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")
JOB_UID_LABEL: Final = "kueue.x-k8s.io/job-uid"  # by it Kueue's own tools find the job of a Workload
POD_SET: Final = "main"


class PodSet(Object, frozen=True, gc=False):
    name: str = ""
    count: int = 0
    min_count: int | None = None


class WorkloadSpec(Object, frozen=True, gc=False):
    queue_name: str = ""
    priority: int | None = None
    pod_sets: tuple[PodSet, ...] = ()
    active: bool = True


class Assignment(Object, frozen=True, gc=False):
    name: str = ""
    flavors: dict[str, str] = msgspec.field(default_factory=dict)
    count: int | None = None


class Admission(Object, frozen=True, gc=False):
    cluster_queue: str = ""
    pod_set_assignments: tuple[Assignment, ...] = ()


class PodSetUpdate(Object, frozen=True, gc=False):
    """What an admission check wants of the pods, such as the nodes that were provisioned for them."""

    name: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()


class AdmissionCheck(Object, frozen=True, gc=False):
    name: str = ""
    state: str = ""
    message: str = ""
    pod_set_updates: tuple[PodSetUpdate, ...] = ()


class Reclaimable(Object, frozen=True, gc=False):
    name: str = ""
    count: int = 0


class WorkloadStatus(Object, frozen=True, gc=False):
    conditions: tuple[Condition, ...] = ()
    admission: Admission | None = None
    reclaimable_pods: tuple[Reclaimable, ...] = ()
    admission_checks: tuple[AdmissionCheck, ...] = ()


class Workload(Object, frozen=True, gc=False):
    """What stands for a job in Kueue's queue."""

    metadata: Metadata
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    def condition(self, type_: str) -> Condition | None:
        """None where nobody has said it yet."""
        return next((each for each in self.status.conditions if each.type == type_), None)

    def is_true(self, type_: str) -> bool:
        """Whether the condition holds."""
        found = self.condition(type_)
        return found is not None and found.status == "True"


class FlavorSpec(Object, frozen=True, gc=False):
    node_labels: dict[str, str] = msgspec.field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()


class Flavor(Object, frozen=True, gc=False):
    """A kind of nodes whose quota is counted apart."""

    metadata: Metadata
    spec: FlavorSpec = FlavorSpec()


class Priority(Object, frozen=True, gc=False):
    """A WorkloadPriorityClass, or a PriorityClass of Kubernetes' own."""

    metadata: Metadata
    value: int = 0
    global_default: bool = False


# Where the API server keeps them. `api` is one of `APIS`.


def workloads(api: str) -> Resource[Workload]:
    return Resource(f"/apis/{api}", "workloads", "Workload", Workload, selector=JOB_LABEL)


def flavors(api: str) -> Resource[Flavor]:
    return Resource(f"/apis/{api}", "resourceflavors", "ResourceFlavor", Flavor, namespaced=False)


def workload_priorities(api: str) -> Resource[Priority]:
    return Resource(f"/apis/{api}", "workloadpriorityclasses", "WorkloadPriorityClass", Priority, namespaced=False)


PRIORITIES: Final = Resource(
    "/apis/scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", Priority, namespaced=False
)
