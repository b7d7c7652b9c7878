"""A member's pod: the user's template with what Holdfast adds. Pure; all pods of a job share one blueprint.

The user's image needs nothing but `python3` and torch. An init container copies the launcher into a volume that
the trainer container mounts, so that image and Holdfast are released apart.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec

from holdfast.api.bounds import LEARNED
from holdfast.api.errors import InvalidSpec
from holdfast.api.gpus import TRAINER
from holdfast.api.metadata import API_VERSION
from holdfast.api.runmanifest import IMAGE_VARIABLE
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.decide.allowance import beside
from holdfast.operator.decide.observed import Capacity, Options
from holdfast.operator.decide.pods import pod_name
from holdfast.operator.decide.template import (
    DEFAULT_GRACE_S,
    FIELDS,
    LAUNCHER,
    LAUNCHER_PATH,
    PREFERRED,
    REQUIRED,
    RUN_PATH,
    RUN_VOLUME,
    SHARED_MEMORY,
    SHARED_MEMORY_PATH,
    TOKEN_FILE,
    TOKEN_LIFE_S,
    TOKEN_PATH,
    TOKEN_VOLUME,
    Template,
    check_template,
    read_template,
)
from holdfast.operator.kube.objects import (
    AVOIDS,
    EDITION,
    HOSTNAME_LABEL,
    JOB_LABEL,
    MEMBER_LABEL,
    QUICK_ENDS,
    REFUSED_BY,
    SHM_SIZE,
    TRAINER_NAME,
    Pod,
)
from holdfast.wire.access import WATCHDOG_CA_VARIABLE

Manifest = dict[str, Any]

LEAVING_S: Final = 5
"""Kept back from the pod's grace period: the launcher ends its workers and itself in it."""
# Any user but root does: the volume is writable for all, and what is copied is readable for all.
COPYING_USER: Final = 65532
# A name server that went with its node is asked for a second, not for five: heartbeats are missed after three.
# Source: resolv.conf(5), "timeout" and "attempts"
DNS: Final[Manifest] = {"options": [{"name": "timeout", "value": "1"}, {"name": "attempts", "value": "4"}]}
COPIES_LAUNCHER: Final[Manifest] = {
    "name": LAUNCHER,
    "command": ["/install", LAUNCHER_PATH],
    "volumeMounts": [{"name": LAUNCHER, "mountPath": LAUNCHER_PATH}],
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": COPYING_USER,
        "runAsGroup": COPYING_USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}
CONSUMES: Final = "autoscaling.x-k8s.io/consume-provisioning-request"
CONSUMES_CLASS: Final = "autoscaling.x-k8s.io/provisioning-class-name"
WEIGHT_MAX: Final = 100  # Kubernetes' own
NAMES_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Placement:
    """What a queue adds to the pods it let in: where they may go, and what its checks write on them."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


UNCHANGED: Final = Placement()


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What all pods of a job have in common. The manifests share it: nobody may change one in place."""

    job: str
    manifest: Manifest

    def pod(self, ordinal: int, quick_ends: int = 0) -> Manifest:
        """The pod of that number. `quick_ends` is how many before it in a row had ended quickly."""
        name = pod_name(self.job, ordinal)
        metadata = self.manifest["metadata"]
        annotations = {**metadata["annotations"], QUICK_ENDS: str(quick_ends)}
        return {
            **self.manifest,
            "metadata": {
                **metadata,
                "name": name,
                "labels": {**metadata["labels"], MEMBER_LABEL: name},
                "annotations": annotations if quick_ends else metadata["annotations"],
            },
            "spec": {**self.manifest["spec"], "hostname": name},
        }


def blueprint(
    job: TrainingJob,
    options: Options,
    avoided: Sequence[str] = (),
    placement: Placement = UNCHANGED,
    refused: Sequence[str] = (),
) -> Blueprint:
    """The pods of `job`, kept away from nodes with the host name labels `avoided` and, for a while, `refused`, as
    its queue wants them.

    Raises InvalidSpec.
    """
    if problems := check_template(job):
        raise InvalidSpec(*problems)
    template = read_template(job.spec.template)
    assert isinstance(template, Template), "a checked template can be read"
    name, trainer = job.metadata.name or "", template.spec.containers[template.trainer].name
    metadata = {
        "namespace": job.metadata.namespace,
        "labels": {
            **labels_of(name),
            **(template.metadata.labels or {}),
            **placement.labels,
            JOB_LABEL: name,
        },
        "annotations": {
            **_consumes(name, options),
            **(template.metadata.annotations or {}),
            **placement.annotations,
            **({AVOIDS: ",".join(sorted(avoided))} if avoided else {}),
            **({REFUSED_BY: ",".join(sorted(refused))} if refused else {}),
            **({TRAINER_NAME: trainer} if trainer != TRAINER else {}),
            EDITION: edition_of(job),
        },
        "ownerReferences": [owner_reference(name, job.metadata.uid or "")],
    }
    spec = _placed(_spec(job, options, template, sorted((*avoided, *refused))), placement)
    return Blueprint(name, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def _placed(spec: Manifest, placement: Placement) -> Manifest:
    """With the selector and the tolerations of `placement`; the user's own stay."""
    placed = dict(spec)
    if placement.node_selector:
        placed["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **placement.node_selector}
    if placement.tolerations:
        given = list(spec.get("tolerations") or ())
        placed["tolerations"] = [*given, *(each for each in placement.tolerations if each not in given)]
    return placed


def _consumes(name: str, options: Options) -> dict[str, str]:
    """By these the pods take what the job's own provisioning request gets, and ask for nothing by themselves."""
    if options.capacity is not Capacity.PROVISIONING_REQUEST:
        return {}
    return {CONSUMES: name, CONSUMES_CLASS: options.provisioning_class}


def _spec(job: TrainingJob, options: Options, template: Template, avoided: Sequence[str]) -> Manifest:
    given = cast(Manifest, job.spec.template)["spec"]
    token = {"audience": options.audience, "expirationSeconds": TOKEN_LIFE_S, "path": "token"}
    volumes: list[Manifest] = [
        {"name": LAUNCHER, "emptyDir": {}},
        {"name": RUN_VOLUME, "emptyDir": {}},
        {"name": TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}},
    ]
    mounts: list[Manifest] = [
        {"name": LAUNCHER, "mountPath": LAUNCHER_PATH, "readOnly": True},
        {"name": RUN_VOLUME, "mountPath": RUN_PATH},
        {"name": TOKEN_VOLUME, "mountPath": TOKEN_PATH, "readOnly": True},
    ]
    trainer = template.spec.containers[template.trainer]
    if all(each.path != SHARED_MEMORY_PATH for each in trainer.volume_mounts or ()):
        # Without a size the pod's memory limit limits it.
        size = (template.metadata.annotations or {}).get(SHM_SIZE)
        limit = {} if size is None else {"sizeLimit": size}
        volumes.append({"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory", **limit}})
        mounts.append({"name": SHARED_MEMORY, "mountPath": SHARED_MEMORY_PATH})
    environment: list[Manifest] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in FIELDS.items()
    ]
    if options.watchdog_ca:
        environment.append({"name": WATCHDOG_CA_VARIABLE, "value": options.watchdog_ca})
    containers = [dict(container) for container in given["containers"]]
    user = containers[template.trainer]
    # The job tells by which image a round was started; nothing in a container knows that.
    environment.append({"name": IMAGE_VARIABLE, "value": str(user.get("image") or "")})
    grace_s = template.spec.termination_grace_period_seconds
    containers[template.trainer] = {
        **{key: value for key, value in user.items() if key != "args"},
        "command": _command(job, options, DEFAULT_GRACE_S if grace_s is None else grace_s),
        # Ours come first: a user's variable may refer to them.
        "env": [*environment, *(user.get("env") or ())],
        "volumeMounts": [*(user.get("volumeMounts") or ()), *mounts],
    }
    # The token needs an account by name. Admission would fill in the same, in clusters that have it switched on.
    account = {} if given.get("serviceAccount") else {"serviceAccountName": "default"}
    # On the host's network, the usual way to RDMA, a pod asks a name service that knows no service of the cluster.
    names = {"dnsPolicy": "ClusterFirstWithHostNet"} if given.get("hostNetwork") else {}
    return {
        **account,
        **names,
        "dnsConfig": DNS,
        **given,
        "containers": containers,
        # First, so that the launcher is there for whatever else a user prepares.
        "initContainers": [
            _copies_launcher(options, template),
            *(given.get("initContainers") or ()),
        ],
        "volumes": [*(given.get("volumes") or ()), *volumes],
        "restartPolicy": "Never",
        "subdomain": job.metadata.name,
        "affinity": affinity(
            given.get("affinity") or {}, job.metadata.name or "", avoided, job.spec.placement.pack
        ),
    }


def _copies_launcher(options: Options, template: Template) -> Manifest:
    others = (*template.spec.containers, *(template.spec.init_containers or ()))
    theirs = [each.resources or {} for each in others]
    resources = beside(options.launcher_resources, theirs, template.spec.resources)
    return {**COPIES_LAUNCHER, "image": options.launcher_image, "resources": resources}


def _command(job: TrainingJob, options: Options, grace_s: int) -> list[str]:
    interval_s = job.spec.fault_policy.heartbeat.interval.total_seconds()
    preload = job.spec.startup.preload
    return [
        *("python3", f"{LAUNCHER_PATH}/launch"),
        *("--rdzv-endpoint", options.watchdog, "--rdzv-id", job.id),
        *("--member", "$(HOLDFAST_MEMBER)", "--node", "$(HOLDFAST_NODE)", "--local-addr", "$(HOLDFAST_POD_IP)"),
        *("--run-dir", RUN_PATH, "--token-file", TOKEN_FILE),
        *("--nproc-per-node", str(job.spec.local_size())),
        *("--leave-grace", str(max(0, grace_s - LEAVING_S)), "--heartbeat-interval", f"{interval_s:g}"),
        # Not where it is what a launcher does unasked: the image's may be of an earlier version.
        *(("--preload", ",".join(preload)) if preload != (LEARNED,) else ()),
        # Kubernetes would read $(NAME) in a command; on one machine nobody does. The same job means the same.
        *(part.replace("$", "$$") for part in job.spec.entrypoint),
    ]


def affinity(given: Mapping[str, Any], job: str, avoided: Sequence[str], pack: Sequence[str]) -> Manifest:
    """The user's affinity, of a checked template, with Holdfast's added: one pod per node, none on a node whose
    host name label is in `avoided`, close together by the domains of `pack`.
    """
    merged: Manifest = dict(given)
    members = {"matchLabels": {JOB_LABEL: job}}
    if avoided:
        asked = given.get("nodeAffinity") or {}
        away = {"key": HOSTNAME_LABEL, "operator": "NotIn", "values": list(avoided)}
        # Selector options are alternatives: each of them has to keep away.
        alternatives: list[Manifest] = (asked.get(REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
        kept = [
            {**each, "matchExpressions": [*(each.get("matchExpressions") or ()), away]} for each in alternatives
        ]
        merged["nodeAffinity"] = {**asked, REQUIRED: {"nodeSelectorTerms": kept}}
    apart = given.get("podAntiAffinity") or {}
    alone = {"labelSelector": members, "topologyKey": HOSTNAME_LABEL}
    merged["podAntiAffinity"] = {**apart, REQUIRED: [*(apart.get(REQUIRED) or ()), alone]}
    if pack:
        together = given.get("podAffinity") or {}
        # The closest domain weighs most, each further one half of it.
        wishes = [
            {
                "weight": max(1, WEIGHT_MAX >> place),
                "podAffinityTerm": {"labelSelector": members, "topologyKey": domain},
            }
            for place, domain in enumerate(pack)
        ]
        merged["podAffinity"] = {**together, PREFERRED: [*(together.get(PREFERRED) or ()), *wishes]}
    return merged


def labels_of(job: str) -> dict[str, str]:
    """On everything that belongs to a job."""
    return {
        JOB_LABEL: job,
        "app.kubernetes.io/name": "trainingjob",
        "app.kubernetes.io/instance": job,
        "app.kubernetes.io/managed-by": "holdfast",
    }


def owner_reference(name: str, uid: str) -> Manifest:
    """What belongs to a job goes with it."""
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingJob",
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


# Editions: pods that were made of an earlier template than the job has now, and whether they are to be made anew.
#
# A change of the template alone moves nobody: training goes on in the pods that run, and new ones are made of the
# new template. A Restart that is asked for after the change makes all anew. A pod that never began is made anew at
# once: an image that cannot be pulled is the usual reason for the change.


def edition_of(job: TrainingJob) -> str:
    """A digest of what the job's user says of its pods. What the installation adds is no reason to roll them."""
    said = (job.spec.template, list(job.spec.entrypoint), job.spec.local_size())
    return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()[:16]


def is_earlier(pod: Pod, edition: str) -> bool:
    """Whether it was made of another template. One on which nothing is written is taken for what it should be."""
    return pod.metadata.annotations.get(EDITION, edition) != edition


def difference(pods: list[Pod], job: TrainingJob) -> str:
    """What runs in these pods, and what new ones get; `pods` is not empty."""
    template = read_template(job.spec.template)
    assert isinstance(template, Template), "pods were made of it"
    trainer = template.spec.containers[template.trainer]
    images = sorted({each.image for pod in pods for each in pod.spec.containers if each.name == trainer.name})
    names = ", ".join(pod.metadata.name for pod in pods[:NAMES_SHOWN])
    more = f" and {len(pods) - NAMES_SHOWN} more" if len(pods) > NAMES_SHOWN else ""
    return f"{names}{more} run an earlier template (image {', '.join(images)}); new pods get image {trainer.image}"
