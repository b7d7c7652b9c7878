"""A member's pod: the user's template with what Holdfast adds. Pure; all pods of a job share one blueprint."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from holdfast.api.errors import InvalidSpec
from holdfast.api.metadata import API_VERSION
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.injection import Injection, SharedMemory, injection
from holdfast.operator.marks import AVOIDS, EDITION, JOB_LABEL, MEMBER_LABEL, QUICK_ENDS
from holdfast.operator.observed import Terms
from holdfast.operator.placement import affinity
from holdfast.operator.template import Template, check_template, read_template

Manifest = dict[str, Any]


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


def pod_name(job: str, ordinal: int) -> str:
    """The pod's, and so the member's name."""
    return f"{job}-{ordinal}"


def ordinal_of(job: str, name: str) -> int | None:
    """The number in a pod's name, None when the name is not of this job's making."""
    prefix, _, number = name.rpartition("-")
    return int(number) if prefix == job and number.isascii() and number.isdigit() else None


def blueprint(job: TrainingJob, terms: Terms, avoided: Sequence[str] = ()) -> Blueprint:
    """The pods of `job`, kept away from nodes with the host name labels `avoided`. Raises InvalidSpec."""
    if problems := check_template(job):
        raise InvalidSpec(*problems)
    read = read_template(job.spec.template)
    assert isinstance(read, Template), "a checked template can be read"
    name, given = job.metadata.name or "", cast(Manifest, job.spec.template)["spec"]
    asked, metadata = given.get("affinity") or {}, _metadata(job, read, avoided)
    spec = {
        **_pod_spec(job, terms, given, read),
        "affinity": affinity(asked, name, sorted(avoided), job.spec.placement.pack),
    }
    return Blueprint(name, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def _pod_spec(job: TrainingJob, terms: Terms, given: Manifest, read: Template) -> Manifest:
    shared = None if read.mounts_shared_memory else SharedMemory(read.shared_memory_size)
    added = injection(job, terms, read.grace_s, shared)
    containers = [dict(container) for container in given["containers"]]
    containers[read.trainer] = _trainer(containers[read.trainer], added)
    # The token needs an account by name. Admission would fill in the same, in clusters that have it switched on.
    account = {} if given.get("serviceAccount") else {"serviceAccountName": "default"}
    # On the host's network, the usual way to RDMA, a pod asks a name service that knows no service of the cluster.
    names = {"dnsPolicy": "ClusterFirstWithHostNet"} if given.get("hostNetwork") else {}
    return {
        **account,
        **names,
        **given,
        "containers": containers,
        # First, so that the launcher is there for whatever else a user prepares.
        "initContainers": [added.init_container, *(given.get("initContainers") or ())],
        "volumes": [*(given.get("volumes") or ()), *added.volumes],
        "restartPolicy": "Never",
        "subdomain": job.metadata.name,
    }


def _trainer(given: Manifest, added: Injection) -> Manifest:
    without = {key: value for key, value in given.items() if key != "args"}
    return {
        **without,
        "command": list(added.command),
        # Ours come first: a user's variable may refer to them.
        "env": [*added.environment, *(given.get("env") or ())],
        "volumeMounts": [*(given.get("volumeMounts") or ()), *added.mounts],
    }


def _metadata(job: TrainingJob, read: Template, avoided: Sequence[str]) -> Manifest:
    name = job.metadata.name or ""
    avoids = {AVOIDS: avoids_text(avoided)} if avoided else {}
    return {
        "namespace": job.metadata.namespace,
        "labels": {**labels_of(name), **(read.metadata.labels or {}), JOB_LABEL: name},
        "annotations": {**(read.metadata.annotations or {}), **avoids, EDITION: edition_of(job)},
        "ownerReferences": [owner_reference(name, job.metadata.uid or "")],
    }


def edition_of(job: TrainingJob) -> str:
    """A digest of what the job's user says of its pods. What the installation adds is no reason to roll them."""
    said = (job.spec.template, list(job.spec.entrypoint), job.spec.local_size())
    return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()[:16]


def avoids_text(avoided: Sequence[str]) -> str:
    """What a pod is made to keep away from, to be compared."""
    return ",".join(sorted(avoided))


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
