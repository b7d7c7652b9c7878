"""A job's pod template as its user wrote it: the parts Holdfast touches, and every reason why it cannot be used.

The template stays open: what is not named here is the API server's to judge. Nothing a user wrote is overwritten;
where Holdfast needs the same field or name, that is a problem with a message.
"""

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from holdfast.api.errors import Problem
from holdfast.api.gpus import TRAINER
from holdfast.api.runmanifest import IMAGE_VARIABLE
from holdfast.api.section import MISSING, nearest
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.kube.objects import HOSTNAME_LABEL, OUR_PREFIX, SHM_SIZE
from holdfast.wire.access import WATCHDOG_CA_VARIABLE

# What Holdfast adds to a pod, by the names that are therefore taken.
LAUNCHER: Final = "holdfast-launcher"
LAUNCHER_PATH: Final = "/opt/holdfast"
RUN_VOLUME: Final = "holdfast-run"  # the agent finds run directories by this name
RUN_PATH: Final = "/var/run/holdfast"
TOKEN_VOLUME: Final = "holdfast-token"
TOKEN_PATH: Final = "/var/run/secrets/holdfast"
TOKEN_FILE: Final = f"{TOKEN_PATH}/token"
TOKEN_LIFE_S: Final = 3600  # the kubelet renews it at 80 % of its life; launchers read it anew
SHARED_MEMORY: Final = "holdfast-shm"
SHARED_MEMORY_PATH: Final = "/dev/shm"

RESERVED_VOLUMES = frozenset((LAUNCHER, RUN_VOLUME, TOKEN_VOLUME, SHARED_MEMORY))
RESERVED_PATHS = frozenset((LAUNCHER_PATH, RUN_PATH, TOKEN_PATH))
FIELDS: Final = {
    "HOLDFAST_MEMBER": "metadata.name",
    "HOLDFAST_NODE": "spec.nodeName",
    "HOLDFAST_POD_IP": "status.podIP",
}
RESERVED_ENVIRONMENT = frozenset(
    (
        *FIELDS,
        IMAGE_VARIABLE,
        "HOLDFAST_JOB",
        "HOLDFAST_ROUND",
        "HOLDFAST_RANK",
        "HOLDFAST_CONTROL",
        "HOLDFAST_RUN_DIR",
        "HOLDFAST_TOKEN",
        WATCHDOG_CA_VARIABLE,
    )
)

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
DEFAULT_GRACE_S = 30  # Kubernetes' own terminationGracePeriodSeconds
NAME_LENGTH_MAX = 52  # the name, a dash and a pod's number make a host name of 63 at most
NAME_LENGTH_FIX: Final = f"use at most {NAME_LENGTH_MAX} characters; pods are named after it"
SERVICE_NAME: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"
SERVICE_NAME_FIX: Final = "use lower-case letters, digits and dashes, a letter first; a service is named after it"
SELECTED_NODE_FIX: Final = "remove it; pods of a job share no node, and only one could be placed"
# Regular expressions that Go takes as well: the definition holds jobs to the same.
QUANTITY: Final = "[0-9]+([.][0-9]+)?([KMGT]i|[kMGT])?"
INTEGER: Final = "^(0|-?[1-9][0-9]{0,17})$"
COMPARES: Final = ("Gt", "Lt")
"""Operators of tolerations that compare numbers, from Kubernetes 1.35 on.
Source: https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/"""
TOLERATION_OPERATORS: Final = ("Exists", "Equal", *COMPARES)
_ANYTHING: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
METADATA_FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "labels": {"type": "object"},
    "annotations": {"type": "object"},
    "name": {"type": "string"},
    "generateName": {"type": "string"},
    "namespace": {"type": "string"},
    "uid": {"type": "string"},
    "resourceVersion": {"type": "string"},
    "generation": {"type": "integer"},
    "selfLink": {"type": "string"},
    "creationTimestamp": {"type": "string"},
    "deletionTimestamp": {"type": "string"},
    "deletionGracePeriodSeconds": {"type": "integer"},
    "finalizers": {"type": "array", "items": {"type": "string"}},
    "ownerReferences": {"type": "array", "items": _ANYTHING},
    "managedFields": {"type": "array", "items": _ANYTHING},
}
"""What any object of Kubernetes may have. Of a template only the first two are read.
Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/object-meta/"""


class Fix(Enum):
    """What is wrong with a template, where the definition and the reader say the same of it."""

    COMMAND = "command"
    COMPARES = "compares"
    CONTAINER_OF_OURS = "container of ours"
    DEADLINE = "deadline"
    HOST_NAME = "host name"
    MOUNT_OF_OURS = "mount of ours"
    ONE_NODE = "one node"
    OUR_NAME = "our name"
    RESTARTED = "restarted"
    RESTARTS_ALL = "restarts all"
    SIZE = "size"
    VARIABLE_OF_OURS = "variable of ours"
    VOLUME_OF_OURS = "volume of ours"


FIXES: Final[Mapping[Fix, str]] = {
    Fix.COMMAND: "remove it; spec.entrypoint is what runs",
    Fix.COMPARES: "write a whole number in quotes; Gt and Lt compare numbers",
    Fix.CONTAINER_OF_OURS: "give it another name; Holdfast adds a container of this name",
    Fix.DEADLINE: "remove it; a pod that ends by it is replaced (spec.ttlAfterFinished is of the job)",
    Fix.HOST_NAME: "remove it; each pod's host name is its member's name",
    Fix.MOUNT_OF_OURS: "mount it elsewhere; Holdfast mounts a volume there",
    Fix.ONE_NODE: "remove it; every pod would be put on that one node (use nodeSelector or affinity)",
    Fix.OUR_NAME: f"remove it; {OUR_PREFIX} is Holdfast's own",
    Fix.RESTARTED: "remove it; a pod that ended is replaced by one of a new name",
    Fix.RESTARTS_ALL: "remove it; the trainer would be started again in a pod that the round has left",
    Fix.SIZE: "write a quantity such as 64Gi",
    Fix.VARIABLE_OF_OURS: "give it another name; Holdfast sets this variable",
    Fix.VOLUME_OF_OURS: "give it another name; Holdfast adds a volume of this name",
}


class Shape(msgspec.Struct, frozen=True, rename="camel"):
    """Base of the parts read here."""


class Named(Shape, frozen=True):
    name: str = ""


class Mount(Shape, frozen=True):
    mount_path: str = ""

    @property
    def path(self) -> str:
        """`/var/run` is a link to `/run` in most images, and a mount of either hides the other."""
        path = self.mount_path.rstrip("/")
        return f"/var{path}" if path.startswith("/run/") else path


class Container(Shape, frozen=True):
    name: str = ""
    image: str = ""
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[Named, ...] | None = None
    volume_mounts: tuple[Mount, ...] | None = None
    resources: dict[str, Any] | None = None
    restart_policy: str | None = None
    restart_policy_rules: tuple[dict[str, Any], ...] | None = None


class Toleration(Shape, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class NodeSelector(Shape, frozen=True):
    # A term has two lists of expressions, by name.
    node_selector_terms: tuple[dict[str, tuple[dict[str, Any], ...] | None], ...] = ()


class NodeAffinity(Shape, frozen=True):
    required: NodeSelector | None = msgspec.field(name=REQUIRED, default=None)


class PodAffinity(Shape, frozen=True):
    required: tuple[dict[str, Any], ...] | None = msgspec.field(name=REQUIRED, default=None)
    preferred: tuple[dict[str, Any], ...] | None = msgspec.field(name=PREFERRED, default=None)


class Affinity(Shape, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Spec(Shape, frozen=True):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    resources: dict[str, Any] | None = None
    volumes: tuple[Named, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    affinity: Affinity | None = None
    termination_grace_period_seconds: int | None = None
    restart_policy: str | None = None
    hostname: str | None = None
    hostname_override: str | None = None
    set_hostname_as_fqdn: bool | None = msgspec.field(name="setHostnameAsFQDN", default=None)
    active_deadline_seconds: int | None = None
    subdomain: str | None = None
    node_name: str | None = None
    node_selector: dict[str, str] | None = None
    scheduler_name: str | None = None


class Labels(Shape, frozen=True):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Template(Shape, frozen=True):
    """A PodTemplateSpec as far as Holdfast reads it."""

    spec: Spec
    metadata: Labels = Labels()

    @property
    def trainer(self) -> int:
        """Which container runs the launcher: the one named trainer, else the first."""
        named = (place for place, each in enumerate(self.spec.containers) if each.name == TRAINER)
        return next(named, 0)


_EXPECTED = {
    "array": "write a list",
    "object": "write a mapping of names to values",
    "str": "write a text; put it in quotes if it looks like a number",
    "int": "write a whole number",
}


def read_template(template: Mapping[str, Any] | None) -> Template | Problem:
    """The template, or why it is none: the first thing that is not of a PodTemplateSpec's shape."""
    if template is None:
        return Problem("spec.template", MISSING, "add it; in a cluster a job needs a pod template")
    try:
        return msgspec.convert(template, Template)
    except msgspec.ValidationError as error:
        complaint, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`")
    if missing := re.search(r"missing required field `(\w+)`", complaint):
        return Problem(f"spec.template{path}.{missing[1]}", MISSING, "add it")
    expected = re.match(r"Expected `(\w+)", complaint)
    fix = _EXPECTED.get(expected[1]) if expected else None
    # What is there; where the path is not exact ("[...]", some entry of a mapping), what holds it.
    found: Any = template
    for key, place in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        found = found[int(place) if place else key]
    return Problem(f"spec.template{path}", found, fix or f"mend it: {complaint}")


def check_template(job: TrainingJob) -> tuple[Problem, ...]:
    """Every reason why no pod can be made from the job's template; none when one can."""
    name, problems = job.metadata.name or "", []
    if len(name) > NAME_LENGTH_MAX:
        problems.append(Problem("metadata.name", name, NAME_LENGTH_FIX))
    if not re.fullmatch(SERVICE_NAME, name):
        problems.append(Problem("metadata.name", name, SERVICE_NAME_FIX))
    template = read_template(job.spec.template)
    if isinstance(template, Problem):
        problems.append(template)
    elif not template.spec.containers:
        problems.append(Problem("spec.template.spec.containers", [], "list at least one container"))
    else:
        problems += [*_check_metadata(job, template), *_check_pod(job, template), *_check_containers(template)]
    return tuple(problems)


def _check_metadata(job: TrainingJob, template: Template) -> Iterator[Problem]:
    where = "spec.template.metadata"
    for name, value in _mapping((job.spec.template or {}).get("metadata")).items():
        if name not in METADATA_FIELDS:
            near = nearest(name, METADATA_FIELDS)
            fix = f"there is no such field; did you mean {near}?" if near else "there is no such field; remove it"
            yield Problem(f"{where}.{name}", value, fix)
    labels, annotations = template.metadata.labels or {}, template.metadata.annotations or {}
    for kind, given in (("labels", labels), ("annotations", annotations)):
        for key, value in given.items():
            if key.startswith(OUR_PREFIX) and key != SHM_SIZE:
                yield Problem(f"{where}.{kind}.{key}", value, FIXES[Fix.OUR_NAME])
    size = annotations.get(SHM_SIZE)
    if size is not None and not re.fullmatch(QUANTITY, size):
        yield Problem(f"{where}.annotations.{SHM_SIZE}", size, FIXES[Fix.SIZE])


def _mapping(given: object) -> Mapping[str, Any]:
    return given if isinstance(given, dict) else {}


def _check_pod(job: TrainingJob, template: Template) -> Iterator[Problem]:
    where, spec = "spec.template.spec", template.spec
    if spec.restart_policy not in (None, "Never"):
        yield Problem(f"{where}.restartPolicy", spec.restart_policy, FIXES[Fix.RESTARTED])
    for field, given, fix in (
        ("hostname", spec.hostname, Fix.HOST_NAME),
        ("hostnameOverride", spec.hostname_override, Fix.HOST_NAME),
        ("subdomain", spec.subdomain, Fix.HOST_NAME),
        ("setHostnameAsFQDN", spec.set_hostname_as_fqdn or None, Fix.HOST_NAME),
        ("nodeName", spec.node_name, Fix.ONE_NODE),
        ("activeDeadlineSeconds", spec.active_deadline_seconds, Fix.DEADLINE),
    ):
        if given is not None:
            yield Problem(f"{where}.{field}", given, FIXES[fix])
    grace_s = spec.termination_grace_period_seconds
    if grace_s is not None and grace_s < 0:
        yield Problem(f"{where}.terminationGracePeriodSeconds", grace_s, "write a number of at least 0")
    node = (spec.node_selector or {}).get(HOSTNAME_LABEL)
    if node is not None and job.spec.nodes.max > 1:
        yield Problem(f"{where}.nodeSelector.{HOSTNAME_LABEL}", node, SELECTED_NODE_FIX)
    for place, each in enumerate(spec.tolerations or ()):
        at = f"{where}.tolerations[{place}]"
        if each.operator not in ("", *TOLERATION_OPERATORS):
            expected = ", ".join(TOLERATION_OPERATORS)
            yield Problem(f"{at}.operator", each.operator, f"write one of: {expected}")
        if each.operator in COMPARES and not re.search(INTEGER, each.value):
            yield Problem(f"{at}.value", each.value, FIXES[Fix.COMPARES])


def _check_containers(template: Template) -> Iterator[Problem]:
    where, spec = "spec.template.spec", template.spec
    yield from _check_trainer(spec.containers[template.trainer], f"{where}.containers[{template.trainer}]")
    for place, volume in enumerate(spec.volumes or ()):
        if volume.name in RESERVED_VOLUMES:
            yield Problem(f"{where}.volumes[{place}].name", volume.name, FIXES[Fix.VOLUME_OF_OURS])
    for kind, containers in (("containers", spec.containers), ("initContainers", spec.init_containers or ())):
        for place, container in enumerate(containers):
            yield from _check_container(container, f"{where}.{kind}[{place}]", kind == "initContainers")


def _check_trainer(trainer: Container, where: str) -> Iterator[Problem]:
    for field, given in (("command", trainer.command), ("args", trainer.args)):
        if given:
            yield Problem(f"{where}.{field}", list(given), FIXES[Fix.COMMAND])
    for place, variable in enumerate(trainer.env or ()):
        if variable.name in RESERVED_ENVIRONMENT:
            yield Problem(f"{where}.env[{place}].name", variable.name, FIXES[Fix.VARIABLE_OF_OURS])
    for place, mount in enumerate(trainer.volume_mounts or ()):
        if mount.path in RESERVED_PATHS:
            at = f"{where}.volumeMounts[{place}].mountPath"
            yield Problem(at, mount.mount_path, FIXES[Fix.MOUNT_OF_OURS])


def _check_container(container: Container, where: str, is_init: bool) -> Iterator[Problem]:
    """None is called as ours, and none is started again in place where the pod is to end with it."""
    if container.name == LAUNCHER:
        yield Problem(f"{where}.name", container.name, FIXES[Fix.CONTAINER_OF_OURS])
    rules = list(container.restart_policy_rules or ())
    if is_init:
        if any(each.get("action") == "RestartAllContainers" for each in rules):
            yield Problem(f"{where}.restartPolicyRules", rules, FIXES[Fix.RESTARTS_ALL])
        return
    if container.restart_policy not in (None, "Never"):
        yield Problem(f"{where}.restartPolicy", container.restart_policy, FIXES[Fix.RESTARTED])
    if rules:
        yield Problem(f"{where}.restartPolicyRules", rules, FIXES[Fix.RESTARTED])
