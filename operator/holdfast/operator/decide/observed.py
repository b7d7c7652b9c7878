"""Everything one reconcile looks at, how its user's words are read, and what it comes to.

All of it is plain data; nothing here asks the cluster.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from holdfast.api.errors import InvalidSpec, Problem
from holdfast.api.gpus import Uncounted
from holdfast.api.metadata import API_VERSION
from holdfast.api.plan import JobReport, Plan
from holdfast.api.section import MISSING
from holdfast.api.trainingjob import SAY_PROCESSES, TrainingJob, read_trainingjob
from holdfast.operator.decide.action import Action, KubeEvent
from holdfast.operator.decide.admission import Contender
from holdfast.operator.decide.allowance import CHECKS_POLICY, COPIES_LAUNCHER, Allowance
from holdfast.operator.decide.alterations import Alterations
from holdfast.operator.decide.conditionmap import ConditionMap
from holdfast.operator.kube.kueue import Flavor, Workload
from holdfast.operator.kube.objects import (
    SPEC_BYTES_MAX,
    CapacityRequest,
    Job,
    Node,
    Owned,
    Pod,
    Remediation,
)


class Mode(Enum):
    """What the operator may change."""

    ACT = "act"
    OBSERVE = "observe"  # decides and reports, changes nothing


class Cordoning(Enum):
    """Who takes nodes out of service."""

    OWN = "own"
    CONSUME = "consume"  # another remediator does: its taints are heeded, no node is touched


class Capacity(Enum):
    """How capacity is asked for when pods find no place."""

    PODS = "pods"  # the pods themselves are the request, as cluster autoscalers take them
    PROVISIONING_REQUEST = "provisioning-request"


PROVISIONING_CLASS: Final = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
"""All the nodes or none, as the cluster autoscaler itself does it."""


class HandOn(Enum):
    """How what is proved of nodes is handed on to others. Each is more than the one before."""

    NOTHING = "nothing"
    CONDITION = "condition"  # as a condition of the node
    REMEDIATION = "remediation"  # and as an object that asks for its repair


class Queueing(msgspec.Struct, frozen=True):
    """What is seen of Kueue: the Workloads that the job owns; of the whole cluster, by name, its flavors and the
    values of WorkloadPriorityClasses and PriorityClasses, that of the default one by an empty name.
    """

    workloads: tuple[Workload, ...] = ()
    flavors: Mapping[str, Flavor] = {}
    workload_priorities: Mapping[str, int] = {}
    priorities: Mapping[str, int] = {}


class Options(msgspec.Struct, frozen=True):
    """How this installation does it; from the operator's settings.

    `watchdog` is HOST:PORT as pods reach it, `watchdog_ca` who signed its certificate as PEM (empty: it speaks
    plainly), `audience` that of the token they show it, `launcher_image` carries the launcher into the user's
    image, in a container of `launcher_resources`. `maintenance_taints` are keys that mean "leave this node in good
    order". `condition_map` says which conditions of
    others on nodes count; a remediation that succeeded is kept for `remediation_ttl_s`. `capacity_api` is the
    version of provisioning requests that the API server knows. `check_image` tries a changed policy (empty: none
    does), in a pod of `check_resources` that may take `check_s`. `kueue`: jobs with a queue's name wait for
    Kueue; `kueue_api` is the version of it that the API server knows, empty for none. `place_labels` are labels
    of nodes, and what of their place each names.
    """

    watchdog: str
    launcher_image: str
    audience: str = "holdfast"
    mode: Mode = Mode.ACT
    cordoning: Cordoning = Cordoning.OWN
    maintenance_taints: tuple[str, ...] = ()
    watchdog_ca: str = ""
    condition_map: ConditionMap = ConditionMap()
    place_labels: tuple[tuple[str, str], ...] = ()
    hand_on: HandOn = HandOn.NOTHING
    remediation_ttl_s: float = 86400.0
    capacity: Capacity = Capacity.PODS
    capacity_api: str = "autoscaling.x-k8s.io/v1"
    provisioning_class: str = PROVISIONING_CLASS
    kueue: bool = False
    kueue_api: str = ""
    check_image: str = ""
    check_s: float = 900.0
    launcher_resources: Allowance = COPIES_LAUNCHER
    check_resources: Allowance = CHECKS_POLICY


class Trial(msgspec.Struct, frozen=True):
    """What the API server says of a pod of a job's template (a dry run): why it refuses one, or how it alters it.

    Both None: it was not asked, or the answer was about something else.
    """

    refused: str | None = None
    altered: Alterations | None = None


UNTRIED: Final = Trial()


class Observed(msgspec.Struct, frozen=True):
    """One job and what belongs to it.

    `spec` is the job as read, or every problem with it; `trial` is what the API server says of a pod of it.
    `rivals` are the other jobs that contend for nodes, as far as this one does. `nodes` are all nodes by name.
    `plan` and `report` are the newest the watchdog showed, None when it has not; `heard_age_s` is how long it has
    been away, 0 while it is connected. `remediations` are all that are asked for, by node; `alive` are the uids of
    all jobs then. `capacity` is what the job asked for, of `capacity_templates`. `queueing` is None where Kueue is
    not used. `checks` are the pods that try a changed policy, `check_refused` is what was said against making one,
    by the digest of what it was to try.
    """

    job: Job
    spec: TrainingJob | InvalidSpec
    pods: tuple[Pod, ...]
    nodes: Mapping[str, Node]
    services: tuple[Owned, ...] = ()
    budgets: tuple[Owned, ...] = ()
    plan: Plan | None = None
    report: JobReport | None = None
    heard_age_s: float = 0.0
    trial: Trial = UNTRIED
    rivals: tuple[Contender, ...] = ()
    remediations: Mapping[str, Remediation] = {}
    alive: frozenset[str] = frozenset()
    capacity: tuple[CapacityRequest, ...] = ()
    capacity_templates: tuple[Owned, ...] = ()
    queueing: Queueing | None = None
    checks: tuple[Pod, ...] = ()
    check_refused: Mapping[str, str] = {}


class Outcome(msgspec.Struct, frozen=True):
    """What to do, what to write, what to say. `status` is the whole status, None when it is to stay as it is.

    `reason` says in a sentence why, for the log; `requeue_after_s` when to look again though nothing changed.
    """

    actions: tuple[Action, ...]
    status: Mapping[str, Any] | None
    events: tuple[KubeEvent, ...]
    reason: str
    requeue_after_s: float | None = None


def read_spec(
    job: Job, gpus: int | Uncounted | None = None, runs_with: int | None = None
) -> TrainingJob | InvalidSpec:
    """The job as its user wrote it, or every problem with it.

    `gpus` is what its cluster says that the trainer's container gets, where the spec does not say how many workers
    a node runs; None: nobody had to be asked. `runs_with` are the workers of a node that it runs with already.
    """
    if job.oversize:
        fix = f"write at most {SPEC_BYTES_MAX}; files and long scripts belong into a ConfigMap or the image"
        return InvalidSpec(Problem("spec (bytes of JSON)", job.oversize, fix))
    about = job.metadata
    document: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "TrainingJob",
        "metadata": {
            "name": about.name,
            "namespace": about.namespace,
            "uid": about.uid,
            "generation": about.generation,
        },
        "spec": msgspec.json.decode(job.spec),
    }
    uncounted: tuple[Problem, ...] = ()
    if gpus is not None and isinstance(document["spec"], dict):
        counted = 1 if isinstance(gpus, Uncounted) else max(1, gpus)
        document["spec"] = {**document["spec"], "processesPerNode": counted}
        if isinstance(gpus, Uncounted):
            uncounted = (Problem("spec.processesPerNode", MISSING, f"{SAY_PROCESSES}: {gpus.why}"),)
    try:
        spec = read_trainingjob(document, runs_with)
    except InvalidSpec as error:
        return InvalidSpec(*error.problems, *uncounted)
    return InvalidSpec(*uncounted) if uncounted else spec
