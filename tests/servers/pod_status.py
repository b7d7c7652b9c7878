"""What a kubelet and the node controller write about pods and nodes. Pure: patches as data."""

from typing import Any

Manifest = dict[str, Any]
UNREACHABLE = "node.kubernetes.io/unreachable"
NOT_READY = "node.kubernetes.io/not-ready"


def node_manifest(name: str, labels: dict[str, str], capacity: dict[str, str], taints: list[Manifest]) -> Manifest:
    """A node that is ready from the moment it is created."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "spec": {"taints": taints},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [_condition("Ready", "True", "KubeletReady")],
            "addresses": [{"type": "Hostname", "address": name}],
            "nodeInfo": dict.fromkeys(
                [
                    *("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion"),
                    *("kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture"),
                ],
                "fake",
            ),
        },
    }


def node_ready(status: str, now: str) -> Manifest:
    """The Ready condition as True, False (the kubelet says so) or Unknown (nothing was heard of it)."""
    reason = {"True": "KubeletReady", "False": "KubeletNotReady", "Unknown": "NodeStatusUnknown"}[status]
    return {"status": {"conditions": [{**_condition("Ready", status, reason), "lastTransitionTime": now}]}}


def taints_of(status: str) -> list[Manifest]:
    """What the node controller puts on a node of that Ready condition."""
    if status == "True":
        return []
    key = UNREACHABLE if status == "Unknown" else NOT_READY
    return [{"key": key, "effect": "NoSchedule"}, {"key": key, "effect": "NoExecute"}]


def running(pod: Manifest, address: str, now: str) -> Manifest:
    """All containers run, init containers are through."""
    spec = pod["spec"]
    return {
        "status": {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "startTime": now,
            "conditions": [
                _condition(each, "True") for each in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "initContainerStatuses": [
                _container(each, {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": now}})
                for each in spec.get("initContainers", ())
            ],
            "containerStatuses": [
                {**_container(each, {"running": {"startedAt": now}}), "ready": True, "started": True}
                for each in spec["containers"]
            ],
        }
    }


def ended(pod: Manifest, exit_code: int, reason: str, now: str, message: str = "") -> Manifest:
    """All containers ended with that code; `reason` as the kubelet says it: Completed, Error, OOMKilled. `message`
    are their last words.
    """
    end = {"exitCode": exit_code, "reason": reason, "startedAt": now, "finishedAt": now}
    state = {"terminated": {**end, "message": message} if message else end}
    return {
        "status": {
            "phase": "Succeeded" if exit_code == 0 else "Failed",
            "conditions": [_condition("Ready", "False"), _condition("ContainersReady", "False")],
            "containerStatuses": [_container(each, state) for each in pod["spec"]["containers"]],
        }
    }


def evicted(message: str) -> Manifest:
    """The kubelet took the pod's place away, e.g. for want of memory."""
    return {"status": {"phase": "Failed", "reason": "Evicted", "message": message}}


def waiting(pod: Manifest, reason: str, message: str) -> Manifest:
    """The containers do not start: ErrImagePull, ImagePullBackOff, CreateContainerConfigError."""
    state = {"waiting": {"reason": reason, "message": message}}
    return {
        "status": {
            "phase": "Pending",
            "conditions": [_condition("Ready", "False", "ContainersNotReady")],
            "containerStatuses": [_container(each, state) for each in pod["spec"]["containers"]],
        }
    }


def unschedulable(message: str, now: str) -> Manifest:
    says = {**_condition("PodScheduled", "False", "Unschedulable"), "message": message, "lastTransitionTime": now}
    return {"status": {"conditions": [says]}}


def pod_ready(status: str, now: str) -> Manifest:
    """What is written about the pods of a node that went away or came back: the phase stays as it was."""
    return {"status": {"conditions": [{**_condition("Ready", status), "lastTransitionTime": now}]}}


def _condition(kind: str, status: str, reason: str = "") -> Manifest:
    return {"type": kind, "status": status, **({"reason": reason} if reason else {})}


def _container(container: Manifest, state: Manifest) -> Manifest:
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": state,
    }
