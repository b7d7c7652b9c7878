"""What the operator sees of a pod, in the words a person wants to read."""

import re

from holdfast.api.plan import PodEnd, PodState
from holdfast.operator.objects import Condition, ContainerStatus, Pod, Terminated
from holdfast.operator.timestamp import seconds_of

MESSAGE_LENGTH_MAX = 500
ENDED_PHASES = frozenset(("Failed", "Succeeded"))
# An image that is there already begins within a few seconds of its node being chosen, and its launcher joins soon.
START_S_MAX = 20.0
# Waiting that is part of every start.
ORDINARY_WAITS = frozenset(("ContainerCreating", "PodInitializing", ""))
# Disruptions that somebody wants who does not think of the node. The others come of what its node is like.
# Source: https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
DISPLACING = frozenset(("PreemptionByScheduler", "EvictionByEvictionAPI"))

# What a kubelet says of a pod that used more local storage than it was given. Of the node it says "was low on".
# Source: https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/eviction/helpers.go
OVER_ITS_STORAGE = re.compile(
    r"Usage of EmptyDir volume .* exceeds the limit"
    r"|Container .* exceeded its local ephemeral storage limit"
    r"|Pod ephemeral local storage usage exceeds the total limit of containers"
)


def has_ended(pod: Pod) -> bool:
    return pod.status.phase in ENDED_PHASES


def is_running(pod: Pod) -> bool:
    return pod.status.phase == "Running"


def state_of(pod: Pod) -> tuple[PodState, str]:
    """The pod's state and why it is so."""
    if has_ended(pod):
        return PodState.GONE, end_of(pod)
    if pod.metadata.deletion_timestamp is not None:
        return PodState.LEAVING, _why_leaving(pod)
    if is_running(pod):
        return PodState.RUNNING, ""
    return PodState.PENDING, why_pending(pod)


def end_of(pod: Pod) -> str:
    """How an ended pod ended."""
    if pod.status.reason:
        return _told(pod.status.reason, pod.status.message)
    failed = _worst(_terminated(pod))
    if failed is None:
        return _told(pod.status.phase, pod.status.message)
    how = f"exit code {failed.exit_code}"
    if failed.reason not in ("", "Error", "Completed"):
        how = f"{failed.reason} ({how})"
    return _told(how, failed.message)


def ended_by(pod: Pod) -> PodEnd | None:
    """Who ends it, or ended it, where its node has no part in that."""
    if has_ended(pod) and (_is_out_of_memory(pod) or _is_over_its_storage(pod)):
        return PodEnd.OWN_LIMIT
    disrupted = _condition(pod, "DisruptionTarget")
    if disrupted is not None and disrupted.status == "True":
        return PodEnd.DISPLACED if disrupted.reason in DISPLACING else None
    return PodEnd.DELETED if pod.metadata.deletion_timestamp is not None else None


def _is_out_of_memory(pod: Pod) -> bool:
    """Whether it reached a limit of its own: a container without one dies when the node's memory is used up."""
    limited = {each.name for each in pod.spec.containers if "memory" in each.resources.limits}
    failed = next((each for each in pod.status.container_statuses if _has_failed(each)), None)
    killed = failed.state.terminated if failed is not None and failed.name in limited else None
    return killed is not None and killed.reason == "OOMKilled"


def _is_over_its_storage(pod: Pod) -> bool:
    """Whether a kubelet evicted it for a limit on local storage that its own user set."""
    return pod.status.reason == "Evicted" and OVER_ITS_STORAGE.match(pod.status.message) is not None


def _has_failed(status: ContainerStatus) -> bool:
    return status.state.terminated is not None and status.state.terminated.exit_code != 0


def why_pending(pod: Pod) -> str:
    """What a pod that does not run yet waits for; empty when it is on its way."""
    unscheduled = unschedulable(pod)
    if unscheduled is not None:
        return unscheduled
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting
        if waiting is not None and waiting.reason not in ORDINARY_WAITS:
            return _told(f"container {status.name}: {waiting.reason}", waiting.message)
    return ""


def late_in_s(pod: Pod, now: float) -> float | None:
    """How long until a start that did not begin is late, 0 when it is; None when it has begun, or has no node.

    Images and volumes come before the first container. What keeps them away stands in the pod's events alone.
    """
    bound = _condition(pod, "PodScheduled")
    since = seconds_of(bound.last_transition_time) if bound is not None and bound.status == "True" else None
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    if since is None or pod.status.phase != "Pending" or any(each.state.waiting is None for each in statuses):
        return None
    return max(0.0, since + START_S_MAX - now)


def joins_late_in_s(pod: Pod, now: float) -> float | None:
    """How long until a launcher that runs should have joined, 0 from then on; None where none is known to run."""
    running = [each.state.running for each in pod.status.container_statuses if each.state.running is not None]
    starts = [at for at in (seconds_of(each.started_at) for each in running) if at is not None]
    return max(0.0, max(starts) + START_S_MAX - now) if is_running(pod) and starts else None


def unschedulable(pod: Pod) -> str | None:
    """Why the scheduler finds no place for it; None when it has one, or was not looked at yet."""
    condition = _condition(pod, "PodScheduled")
    if condition is None or condition.status != "False":
        return None
    return _told(condition.reason or "Unschedulable", condition.message)


def unschedulable_since(pod: Pod) -> float | None:
    """Since when the scheduler finds no place for it, in wall seconds; None when it did not say so."""
    condition = _condition(pod, "PodScheduled")
    if condition is None or condition.status != "False":
        return None
    return seconds_of(condition.last_transition_time)


def ran_from_to(pod: Pod) -> tuple[float, float]:
    """When an ended pod began and ended, in wall seconds; its creation where nothing says."""
    created = seconds_of(pod.metadata.creation_timestamp) or 0.0
    terminated = _terminated(pod)
    begins = [each for each in (seconds_of(one.started_at) for one in terminated) if each is not None]
    ends = [each for each in (seconds_of(one.finished_at) for one in terminated) if each is not None]
    return min(begins, default=created), max(ends, default=created)


def _why_leaving(pod: Pod) -> str:
    disrupted = _condition(pod, "DisruptionTarget")
    if disrupted is not None and disrupted.status == "True":
        return _told(disrupted.reason, disrupted.message)
    return _told(pod.status.reason, pod.status.message) if pod.status.reason else "the pod is being deleted"


def _condition(pod: Pod, type_: str) -> Condition | None:
    return next((each for each in pod.status.conditions if each.type == type_), None)


def _terminated(pod: Pod) -> list[Terminated]:
    """Of the init containers when no other began: one of them failed."""
    status = pod.status
    for statuses in (status.container_statuses, status.init_container_statuses):
        if ended := [each.state.terminated for each in statuses if each.state.terminated is not None]:
            return ended
    return []


def _worst(terminated: list[Terminated]) -> Terminated | None:
    """The one that failed, as a rule the trainer; a sidecar that was ended for it comes second."""
    return next((each for each in terminated if each.exit_code), terminated[0] if terminated else None)


def _told(what: str, message: str) -> str:
    text = f"{what}: {message.strip()}" if message.strip() else what
    return text if len(text) <= MESSAGE_LENGTH_MAX else f"{text[: MESSAGE_LENGTH_MAX - 1]}…"
