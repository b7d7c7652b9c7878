"""Kinds of Kubernetes objects: where the API server keeps them, and what is read of them."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.api.metadata import API_VERSION
from holdfast.operator.marks import JOB_LABEL
from holdfast.operator.objects import Asked, Job, Node, Owned, Pod

T = TypeVar("T")

HOLDFAST = f"/apis/{API_VERSION}"


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
INTERVENTIONS = Resource(HOLDFAST, "interventions", "Intervention", Asked)
PODS = Resource("/api/v1", "pods", "Pod", Pod, selector=JOB_LABEL)
NODES = Resource("/api/v1", "nodes", "Node", Node, namespaced=False)
SERVICES = Resource("/api/v1", "services", "Service", Owned, selector=JOB_LABEL)


def budgets(api: str) -> Resource[Owned]:
    """Disruption budgets in the version the API server has, such as `policy/v1`."""
    return Resource(f"/apis/{api}", "poddisruptionbudgets", "PodDisruptionBudget", Owned, selector=JOB_LABEL)
