"""The service and the disruption budget of a job, and whether those that are there are as they should be.

The service gives pods their host names. The budget makes `kubectl drain` wait: an eviction is refused while
Holdfast moves the member in good order and takes the pod away itself.

Each field set here is set on purpose: whoever edits one finds it taken back. What the API server or somebody else
adds beside them is left alone.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.operator.decide.action import Action, Apply, Delete
from holdfast.operator.decide.podbuilder import labels_of, owner_reference
from holdfast.operator.kube.kueue import Workload
from holdfast.operator.kube.objects import JOB_LABEL, MADE_FROM, CapacityRequest, Metadata, Owned

Manifest = dict[str, Any]
SERVICE, BUDGET = "Service", "PodDisruptionBudget"
# More pods than any job has. "maxUnavailable: 0" would let one go for every spare: Kubernetes asks the job's scale
# how many there are to be, and spares do not count there. Of a plain number of pods it asks nobody.
# Source: https://kubernetes.io/docs/tasks/run-application/configure-pdb/#arbitrary-controllers-and-selectors
PODS_MIN = 1_000_000


def service_of(job: Metadata) -> Manifest:
    """Headless; names resolve before a pod is ready, since ranks meet before anything trains."""
    spec = {
        "type": "ClusterIP",
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {JOB_LABEL: job.name},
    }
    return _manifest("v1", SERVICE, job, spec)


def budget_of(job: Metadata, template: Mapping[str, Any] | None) -> Manifest:
    """No pod of the job may be evicted but one that is not ready: no drain has to wait until somebody takes that
    away.

    Where the template says by a probe or a gate when a pod is ready, one that trains may not be: none is evicted.
    Source: https://kubernetes.io/docs/tasks/run-application/configure-pdb/#unhealthy-pod-eviction-policy
    """
    spec = {
        "minAvailable": PODS_MIN,
        "maxUnavailable": None,  # both are refused: without, one that somebody set could not be taken back
        "selector": {"matchLabels": {JOB_LABEL: job.name}},
        "unhealthyPodEvictionPolicy": "IfHealthyBudget" if says_when_ready(template) else "AlwaysAllow",
    }
    return _manifest("policy/v1", BUDGET, job, spec)


def says_when_ready(template: Mapping[str, Any] | None) -> bool:
    """Whether a pod of it is ready when it says so itself, and not as soon as its containers run."""
    pod = (template or {}).get("spec") or {}
    containers = (*pod.get("containers", ()), *(pod.get("initContainers") or ()))
    return bool(pod.get("readinessGates")) or any(
        each.get("readinessProbe") or each.get("startupProbe") for each in containers
    )


def made(manifest: Manifest, there: tuple[Owned, ...]) -> tuple[Action, ...]:
    """Apply `manifest` unless one made from the same is there and nobody edited what it says."""
    wanted = manifest["metadata"]
    for found in there:
        if (
            found.metadata.name == wanted["name"]
            and found.metadata.annotations.get(MADE_FROM) == wanted["annotations"][MADE_FROM]
            # Whole fields are compared: one label more in a selector selects other pods.
            and all(found.spec.get(field) == value for field, value in manifest["spec"].items())
        ):
            return ()
    return (Apply(manifest),)


def removed(kind: str, there: Iterable[Owned | CapacityRequest | Workload]) -> tuple[Action, ...]:
    """Delete all of them that are not on their way out."""
    return tuple(Delete(kind, each.metadata.name) for each in there if each.metadata.deletion_timestamp is None)


def _manifest(api: str, kind: str, job: Metadata, spec: Manifest) -> Manifest:
    metadata = {
        "name": job.name,
        "namespace": job.namespace,
        "labels": labels_of(job.name),
        "ownerReferences": [owner_reference(job.name, job.uid)],
    }
    manifest: Manifest = {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}
    digest = hashlib.sha256(msgspec.json.encode(manifest, order="deterministic")).hexdigest()[:16]
    return {**manifest, "metadata": {**metadata, "annotations": {MADE_FROM: digest}}}
