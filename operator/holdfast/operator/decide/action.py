"""What the operator may do. Every action names what it acts on, so that doing it twice is doing it once."""

from typing import Any

import msgspec

from holdfast.api.plan import NodeObserved, PodObserved
from holdfast.api.policy import Policy

Manifest = dict[str, Any]


class CreatePod(msgspec.Struct, frozen=True, tag=True):
    """Create the pod of one member. One of that name that is there already is the same one."""

    manifest: Manifest


class DeletePod(msgspec.Struct, frozen=True, tag=True):
    """Delete a pod, if it is still the one of that uid. `grace_s` None leaves its own grace period."""

    name: str
    uid: str
    reason: str
    grace_s: int | None = None


class StartCheck(msgspec.Struct, frozen=True, tag=True):
    """Create the pod that tries a changed policy, after the account, role and binding by which it reads the job's
    journal. Those of their names that are there already are the same ones.
    """

    account: Manifest
    role: Manifest
    binding: Manifest
    pod: Manifest


class EndCheck(msgspec.Struct, frozen=True, tag=True):
    """Delete such a pod, if it is still the one of that uid, and what it was allowed by."""

    name: str
    uid: str


class Apply(msgspec.Struct, frozen=True, tag=True):
    """Server-side apply a service or disruption budget."""

    manifest: Manifest


class Delete(msgspec.Struct, frozen=True, tag=True):
    """Delete a service or disruption budget."""

    kind: str
    name: str


class Cordon(msgspec.Struct, frozen=True, tag=True):
    """Taint a node and write down why. `incident` is empty when somebody asked for it."""

    node: str
    reason: str
    incident: str


class Uncordon(msgspec.Struct, frozen=True, tag=True):
    """Take our own taint and annotation off a node. `of` is the job that took it out; empty: this one."""

    node: str
    of: str = ""


class SetNodeHealth(msgspec.Struct, frozen=True, tag=True):
    """Write what Holdfast proved into the node's own condition of that. `since` is its transition time."""

    node: str
    status: str
    reason: str
    message: str
    since: str


class AskForRemediation(msgspec.Struct, frozen=True, tag=True):
    """Create the remediation object of a node. One that is there already was asked for by somebody else."""

    manifest: Manifest


class ChangeRemediation(msgspec.Struct, frozen=True, tag=True):
    """Change it, if it is still the one of that uid and version."""

    name: str
    uid: str
    version: str
    change: Manifest


class EndRemediation(msgspec.Struct, frozen=True, tag=True):
    """Delete it, if it is still the one of that uid."""

    name: str
    uid: str


class ChangeWorkload(msgspec.Struct, frozen=True, tag=True):
    """Change the status of the job's Workload, if it is still the one of that uid and version."""

    name: str
    uid: str
    version: str
    status: Manifest


class KubeEvent(msgspec.Struct, frozen=True):
    """A Kubernetes event about the job. `warning` is its type; the same event again is counted, not repeated."""

    reason: str
    message: str
    warning: bool = False


class RecordLast(msgspec.Struct, frozen=True, tag=True):
    """Record the last event about the job, before what lets it go: afterwards nobody could say it any more.

    One of that reason that is there already is the same one.
    """

    event: KubeEvent


class SetFinalizer(msgspec.Struct, frozen=True, tag=True):
    """Hold the TrainingJob until it has been wound up, or (`held` False) let it go."""

    held: bool


class DeleteJob(msgspec.Struct, frozen=True, tag=True):
    """Delete the TrainingJob itself: its time after the end is over."""


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Tell the watchdog the job's policy."""

    policy: Policy


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Tell the watchdog that the job is gone for good."""


class Tell(msgspec.Struct, frozen=True, tag=True):
    """Tell the watchdog what is seen. The same again is not sent again."""

    observed: NodeObserved | PodObserved


Action = (
    CreatePod
    | DeletePod
    | StartCheck
    | EndCheck
    | Apply
    | Delete
    | Cordon
    | Uncordon
    | SetNodeHealth
    | AskForRemediation
    | ChangeRemediation
    | EndRemediation
    | ChangeWorkload
    | RecordLast
    | SetFinalizer
    | DeleteJob
    | Submit
    | Forget
    | Tell
)
