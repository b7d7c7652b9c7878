"""A job's pod template as its user wrote it: the parts Holdfast touches, and every reason why it cannot be used.

The template stays open: what is not named here is the API server's to judge. Nothing a user wrote is overwritten;
where Holdfast needs the same field or name, that is a problem with a message.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from holdfast.api.errors import Problem
from holdfast.api.gpus import TRAINER
from holdfast.api.runmanifest import IMAGE_VARIABLE
from holdfast.api.section import MISSING
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.kube.objects import OUR_PREFIX, SHM_SIZE
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
_SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([KMGT]i|[kMGT])?")


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
    volumes: tuple[Named, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    affinity: Affinity | None = None
    termination_grace_period_seconds: int | None = None
    restart_policy: str | None = None
    hostname: str | None = None
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
        fix = f"use at most {NAME_LENGTH_MAX} characters; pods are named after it"
        problems.append(Problem("metadata.name", name, fix))
    if not _SERVICE_NAME.fullmatch(name):
        problems.append(Problem("metadata.name", name, "start with a letter; a service is named after it"))
    template = read_template(job.spec.template)
    if isinstance(template, Problem):
        problems.append(template)
    elif not template.spec.containers:
        problems.append(Problem("spec.template.spec.containers", [], "list at least one container"))
    else:
        problems += [*_check_pod(template), *_check_containers(template)]
    return tuple(problems)


def _check_pod(template: Template) -> Iterator[Problem]:
    labels, annotations = template.metadata.labels or {}, template.metadata.annotations or {}
    for kind, given in (("labels", labels), ("annotations", annotations)):
        for key, value in given.items():
            if key.startswith(OUR_PREFIX) and key != SHM_SIZE:
                fix = f"remove it; {OUR_PREFIX} is Holdfast's own"
                yield Problem(f"spec.template.metadata.{kind}.{key}", value, fix)
    size = annotations.get(SHM_SIZE)
    if size is not None and not _QUANTITY.fullmatch(size):
        yield Problem(f"spec.template.metadata.annotations.{SHM_SIZE}", size, "write a quantity such as 64Gi")
    where, spec = "spec.template.spec", template.spec
    if spec.restart_policy not in (None, "Never"):
        fix = "remove it; a pod that ended is replaced by one of a new name"
        yield Problem(f"{where}.restartPolicy", spec.restart_policy, fix)
    for field, name in (("hostname", spec.hostname), ("subdomain", spec.subdomain)):
        if name is not None:
            yield Problem(f"{where}.{field}", name, "remove it; each pod's host name is its member's name")
    if spec.node_name is not None:
        fix = "remove it; every pod would be put on that one node (use nodeSelector or affinity)"
        yield Problem(f"{where}.nodeName", spec.node_name, fix)
    grace_s = spec.termination_grace_period_seconds
    if grace_s is not None and grace_s < 0:
        yield Problem(f"{where}.terminationGracePeriodSeconds", grace_s, "write a number of at least 0")


def _check_containers(template: Template) -> Iterator[Problem]:
    spec, trainer = template.spec, template.spec.containers[template.trainer]
    where = f"spec.template.spec.containers[{template.trainer}]"
    for field, given in (("command", trainer.command), ("args", trainer.args)):
        if given:
            yield Problem(f"{where}.{field}", list(given), "remove it; spec.entrypoint is what runs")
    for place, variable in enumerate(trainer.env or ()):
        if variable.name in RESERVED_ENVIRONMENT:
            fix = "give it another name; Holdfast sets this variable"
            yield Problem(f"{where}.env[{place}].name", variable.name, fix)
    for place, mount in enumerate(trainer.volume_mounts or ()):
        if mount.path in RESERVED_PATHS:
            fix = "mount it elsewhere; Holdfast mounts a volume there"
            yield Problem(f"{where}.volumeMounts[{place}].mountPath", mount.mount_path, fix)
    where = "spec.template.spec"
    for place, volume in enumerate(spec.volumes or ()):
        if volume.name in RESERVED_VOLUMES:
            fix = "give it another name; Holdfast adds a volume of this name"
            yield Problem(f"{where}.volumes[{place}].name", volume.name, fix)
    for kind, containers in (("containers", spec.containers), ("initContainers", spec.init_containers or ())):
        for place, container in enumerate(containers):
            if container.name == LAUNCHER:
                fix = "give it another name; Holdfast adds a container of this name"
                yield Problem(f"{where}.{kind}[{place}].name", container.name, fix)
