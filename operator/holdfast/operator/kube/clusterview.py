"""What is seen of the cluster: the caches, which job an object belongs to, and which jobs a change concerns."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from holdfast.operator.kube.cache import Cache, HasMetadata
from holdfast.operator.kube.kueue import Flavor, Priority, Workload
from holdfast.operator.kube.objects import (
    CHECK_LABEL,
    JOB_LABEL,
    QUEUE_LABEL,
    CapacityRequest,
    Intervention,
    Job,
    Metadata,
    Node,
    Owned,
    Pod,
    Remediation,
)

Changed = Callable[[str], None]
T = TypeVar("T", bound=HasMetadata)


class ClusterView:
    """`job_changed` is called with namespace/name of a job that itself or something of which changed;
    `node_changed` with a node's name when something that matters changed; `asked` with that of an Intervention.
    """

    def __init__(self, job_changed: Changed, node_changed: Changed, asked: Changed) -> None:
        self._job_changed = job_changed
        self._node_changed = node_changed
        self._asked = asked
        self.jobs: Final[Cache[Job]] = Cache(self._on_job)
        self.pods: Final[Cache[Pod]] = Cache(self._on_pod)
        self.checks: Final[Cache[Pod]] = Cache(lambda old, new: self._file(self._checks, old, new, CHECK_LABEL))
        self.nodes: Final[Cache[Node]] = Cache(self._on_node)
        self.services: Final[Cache[Owned]] = Cache(lambda old, new: self._file(self._services, old, new))
        self.budgets: Final[Cache[Owned]] = Cache(lambda old, new: self._file(self._budgets, old, new))
        self.capacity: Final[Cache[CapacityRequest]] = Cache(lambda old, new: self._file(self._capacity, old, new))
        self.capacity_templates: Final[Cache[Owned]] = Cache(
            lambda old, new: self._file(self._capacity_templates, old, new)
        )
        self.workloads: Final[Cache[Workload]] = Cache(lambda old, new: self._file(self._workloads, old, new))
        self.flavors: Final[Cache[Flavor]] = Cache(self._on_queueing)
        self.workload_priorities: Final[Cache[Priority]] = Cache(self._on_queueing)
        self.priorities: Final[Cache[Priority]] = Cache(self._on_queueing)
        self.remediations: Final[Cache[Remediation]] = Cache(self._on_remediation)
        self.interventions: Final[Cache[Intervention]] = Cache(self._on_asked)
        self._pods: dict[str, dict[str, Pod]] = {}
        self._checks: dict[str, dict[str, Pod]] = {}
        self._services: dict[str, dict[str, Owned]] = {}
        self._budgets: dict[str, dict[str, Owned]] = {}
        self._capacity: dict[str, dict[str, CapacityRequest]] = {}
        self._capacity_templates: dict[str, dict[str, Owned]] = {}
        self._workloads: dict[str, dict[str, Workload]] = {}
        self._by_name: dict[str, Node] = {}
        self._remediated: dict[str, Remediation] = {}
        self._jobs_on: dict[str, Counter[str]] = {}

    def job(self, key: str) -> Job | None:
        """By namespace/name."""
        namespace, _, name = key.partition("/")
        return self.jobs.get(namespace, name)

    def jobs_in(self, namespace: str) -> tuple[Job, ...]:
        """All jobs of a namespace."""
        return tuple(job for key, job in self.jobs.objects.items() if key[0] == namespace)

    def pods_of(self, job: Job) -> tuple[Pod, ...]:
        """Its pods, and those that carry its label and have no owner: their names are taken. Those an earlier job
        of the same name left behind are not.
        """
        return _filed(job, self._pods, ("", job.metadata.uid))

    def checks_of(self, job: Job) -> tuple[Pod, ...]:
        """The pods that try a changed policy of it."""
        return _filed(job, self._checks, (job.metadata.uid,))

    def services_of(self, job: Job) -> tuple[Owned, ...]:
        """Its services. What somebody else made stays theirs, whatever label it carries."""
        return _filed(job, self._services, (job.metadata.uid,))

    def budgets_of(self, job: Job) -> tuple[Owned, ...]:
        """Its disruption budgets."""
        return _filed(job, self._budgets, (job.metadata.uid,))

    def capacity_of(self, job: Job) -> tuple[CapacityRequest, ...]:
        """What it asked for."""
        return _filed(job, self._capacity, (job.metadata.uid,))

    def capacity_templates_of(self, job: Job) -> tuple[Owned, ...]:
        """What that was made of."""
        return _filed(job, self._capacity_templates, (job.metadata.uid,))

    def workloads_of(self, job: Job) -> tuple[Workload, ...]:
        """What stands for it in a queue."""
        return _filed(job, self._workloads, (job.metadata.uid,))

    @property
    def nodes_by_name(self) -> Mapping[str, Node]:
        """All nodes, a live view."""
        return MappingProxyType(self._by_name)

    @property
    def remediations_by_node(self) -> Mapping[str, Remediation]:
        """All remediations, a live view."""
        return MappingProxyType(self._remediated)

    def jobs_on(self, node: str) -> Iterable[str]:
        """The jobs that have a pod on the node."""
        return tuple(self._jobs_on.get(node, ()))

    def _on_job(self, old: Job | None, new: Job | None) -> None:
        if (held := new or old) is not None:
            self._job_changed(key_of(held.metadata))

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        self._file(self._pods, old, new)
        for pod, step in ((old, -1), (new, 1)):
            if pod is not None and pod.spec.node_name and (key := job_key(pod.metadata)):
                on_node = self._jobs_on.setdefault(pod.spec.node_name, Counter())
                on_node[key] += step
                if not on_node[key]:
                    del on_node[key]
                if not on_node:
                    del self._jobs_on[pod.spec.node_name]

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        seen = new or old
        assert seen is not None, "a change has two sides"
        name = seen.metadata.name
        if new is None:
            self._by_name.pop(name, None)
        else:
            self._by_name[name] = new
        if _told(old) != _told(new):
            self._node_changed(name)

    def _on_remediation(self, old: Remediation | None, new: Remediation | None) -> None:
        seen = new or old
        assert seen is not None, "a change has two sides"
        name = seen.metadata.name  # that of its node
        if new is None:
            self._remediated.pop(name, None)
        else:
            self._remediated[name] = new
        self._node_changed(name)

    def _on_queueing(self, old: Flavor | Priority | None, new: Flavor | Priority | None) -> None:
        """A flavor or a priority came, changed or went: who waits in a queue may have waited for it."""
        for job in self.jobs.objects.values():
            if job.metadata.labels.get(QUEUE_LABEL):
                self._job_changed(key_of(job.metadata))

    def _on_asked(self, old: Intervention | None, new: Intervention | None) -> None:
        if new is not None:
            self._asked(key_of(new.metadata))

    def _file(self, index: dict[str, dict[str, T]], old: T | None, new: T | None, label: str = JOB_LABEL) -> None:
        """Move what belongs to a job from where it was filed to where it belongs, and tell of both jobs."""
        before = "" if old is None else job_key(old.metadata, label)
        after = "" if new is None else job_key(new.metadata, label)
        if old is not None and before:
            group = index.get(before, {})
            group.pop(old.metadata.name, None)
            if not group:
                index.pop(before, None)
        if new is not None and after:
            index.setdefault(after, {})[new.metadata.name] = new
        for key in {before, after} - {""}:
            self._job_changed(key)


def key_of(metadata: Metadata) -> str:
    """`namespace/name`."""
    return f"{metadata.namespace}/{metadata.name}"


def job_key(metadata: Metadata, label: str = JOB_LABEL) -> str:
    """The job a labelled object belongs to, empty when it has no label."""
    name = metadata.labels.get(label, "")
    return f"{metadata.namespace}/{name}" if name else ""


def owner_uid(metadata: Metadata) -> str:
    """The uid of the object's controller, empty when it has none."""
    return next((each.uid for each in metadata.owner_references if each.controller), "")


def _filed(job: Job, index: Mapping[str, Mapping[str, T]], owners: Container[str]) -> tuple[T, ...]:
    there = index.get(key_of(job.metadata), {}).values()
    return tuple(each for each in there if owner_uid(each.metadata) in owners)


def _told(node: Node | None) -> tuple[object, ...] | None:
    """What a change of the node is news of: its version and heartbeat change all the time."""
    if node is None:
        return None
    about = node.metadata
    return node.spec, node.status, about.annotations, about.labels, about.deletion_timestamp
