"""Several jobs on one cluster whose scheduler places pod by pod, one member on a node."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from operator_builders import OPTIONS, document, node, plan, report, spec_of

from holdfast.api.jobstatus import Condition
from holdfast.api.status import JobPhase
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.decide.action import CreatePod, DeletePod, KubeEvent
from holdfast.operator.decide.admission import Contender, contender
from holdfast.operator.decide.observed import Observed
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.kube.objects import (
    EDITION,
    FINALIZER,
    JOB_LABEL,
    Job,
    JobMetadata,
    Metadata,
    OwnerReference,
    Pod,
    PodSpec,
    PodStatus,
    text_of,
)

Choose = Callable[[list[str]], str]


@dataclass
class Wanted:
    """One job: how many pods it needs, of which priority, on nodes with which labels.

    `undecided` is why no scheduler looks for places for its pods, empty where one does.
    """

    size: int
    priority: int = 0
    spec: Mapping[str, Any] = field(default_factory=dict)
    template: Mapping[str, Any] = field(default_factory=dict)
    created_at: float = 0.0
    undecided: str = ""


@dataclass
class GangCluster:
    """`choose` says which of the pods that wait is placed next: what a scheduler does is not ours to say."""

    wanted: dict[str, Wanted]
    capacity: int
    choose: Choose = min
    now: float = 1_800_000_000.0
    jobs: dict[str, Job] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    events: list[tuple[str, KubeEvent]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    specs: dict[str, TrainingJob] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, wanted in self.wanted.items():
            created = text_of(self.now + wanted.created_at)
            about = JobMetadata(
                name, "research", f"uid-{name}", generation=1, finalizers=(FINALIZER,), creation_timestamp=created
            )
            self.jobs[name] = Job(about)

    def spec(self, name: str) -> TrainingJob:
        if name not in self.specs:
            self.specs[name] = self._read(name)
        return self.specs[name]

    def _read(self, name: str) -> TrainingJob:
        wanted = self.wanted[name]
        about = {"name": name, "uid": f"uid-{name}"}
        pod_spec = {"containers": [{"name": "trainer", "image": "train:1"}], **wanted.template}
        nodes = {"min": wanted.size, "max": wanted.size}
        read = spec_of(document(metadata=about, nodes=nodes, template={"spec": pod_spec}, **wanted.spec))
        assert isinstance(read, TrainingJob), read
        return read

    def placed(self, name: str) -> int:
        return sum(1 for pod in self._pods_of(name) if pod.spec.node_name)

    def trains(self, name: str) -> bool:
        return self.placed(name) >= self.wanted[name].size

    @property
    def running(self) -> set[str]:
        return {name for name in self.jobs if self.trains(name)}

    @property
    def free(self) -> int:
        return self.capacity - sum(1 for pod in self.pods.values() if pod.spec.node_name)

    def condition(self, name: str) -> dict[str, Any]:
        conditions = json.loads(bytes(self.jobs[name].status))["conditions"]
        (found,) = [each for each in conditions if each["type"] == "Admitted"]
        return dict(found)

    def finish(self, name: str) -> None:
        """The job is over and gone."""
        del self.jobs[name]
        self.pods = {key: pod for key, pod in self.pods.items() if pod.metadata.labels[JOB_LABEL] != name}

    def live_for(self, seconds: float, step_s: float = 5.0) -> None:
        """Every job is looked at, then the scheduler places what fits."""
        end = self.now + seconds
        while self.now < end:
            for name in sorted(self.jobs):
                self.look(name)
            self._schedule()
            self.now += step_s

    def look(self, name: str) -> None:
        job, pods = self.jobs[name], tuple(self._pods_of(name))
        size = 0 if self.wanted[name].spec.get("suspend") else self.wanted[name].size
        phase = JobPhase.RUNNING if self.trains(name) else JobPhase.PENDING
        known = report(phase, uid=f"uid-{name}", round=1 if self.trains(name) else None)
        seen = Observed(
            job=job,
            spec=self.spec(name),
            pods=pods,
            nodes={f"n{number}": node(f"n{number}") for number in range(self.capacity)},
            plan=plan(size),
            report=known,
            rivals=self._rivals(name),
        )
        outcome = reconcile(seen, OPTIONS, self.now)
        for action in outcome.actions:
            if isinstance(action, CreatePod):
                self._create(name, action.manifest)
            elif isinstance(action, DeletePod):
                del self.pods[action.name]
                self.deleted.append(action.name)
        self.events += [(name, event) for event in outcome.events]
        if outcome.status is not None:
            status = msgspec.Raw(json.dumps(dict(outcome.status)).encode())
            self.jobs[name] = msgspec.structs.replace(job, status=status)

    def _rivals(self, name: str) -> tuple[Contender, ...]:
        found = (
            contender(job, self.spec(key), self._pods_of(key)) for key, job in self.jobs.items() if key != name
        )
        return tuple(each for each in found if each is not None)

    def _pods_of(self, name: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.metadata.labels[JOB_LABEL] == name]

    def _create(self, job: str, manifest: Mapping[str, Any]) -> None:
        given = manifest["metadata"]
        self.pods[given["name"]] = Pod(
            Metadata(
                given["name"],
                "research",
                f"uid-{given['name']}",
                labels={JOB_LABEL: job},
                annotations={EDITION: given["annotations"][EDITION]},
                creation_timestamp=text_of(self.now),
                owner_references=(OwnerReference(f"uid-{job}", controller=True),),
            ),
            PodSpec(priority=self.wanted[job].priority),
        )

    def _schedule(self) -> None:
        waiting = [name for name, pod in self.pods.items() if not pod.spec.node_name]
        taken = {pod.spec.node_name for pod in self.pods.values()}
        places = [f"n{number}" for number in range(self.capacity) if f"n{number}" not in taken]
        while waiting:
            name = self.choose(sorted(waiting))
            waiting.remove(name)
            pod = self.pods[name]
            if undecided := self.wanted[pod.metadata.labels[JOB_LABEL]].undecided:
                says_nothing = Condition("PodScheduled", "False", undecided, "", text_of(self.now))
                self.pods[name] = msgspec.structs.replace(pod, status=PodStatus(conditions=(says_nothing,)))
            elif places:
                spec = msgspec.structs.replace(pod.spec, node_name=places.pop())
                self.pods[name] = msgspec.structs.replace(pod, spec=spec, status=PodStatus("Running"))
            elif not pod.status.conditions:
                says_no = Condition("PodScheduled", "False", "Unschedulable", "no room", text_of(self.now))
                self.pods[name] = msgspec.structs.replace(pod, status=PodStatus(conditions=(says_no,)))
