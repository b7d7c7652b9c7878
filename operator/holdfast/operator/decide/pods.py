"""A job's pods: which of them count, what each is doing in words for people, and whether they crash in a loop."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.api.gpus import TRAINER
from holdfast.api.jobstatus import Condition
from holdfast.api.plan import NodeObserved, NodeState, Plan, PodEnd, PodState
from holdfast.operator.kube.objects import QUICK_ENDS, TRAINER_NAME, Metadata, Pod, Terminated, seconds_of, text_of

UNREACHABLE = frozenset((NodeState.GONE, NodeState.NOT_READY))
TO_BE_LEFT = frozenset((NodeState.GONE, NodeState.DRAINING))

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

# Why a pod has no node though no scheduler says that there is none for it: somebody's gate keeps it from the
# scheduler's sight, or the scheduler failed at it. Neither asks for nodes.
# Sources: https://kubernetes.io/docs/concepts/scheduling-eviction/pod-scheduling-readiness/ and
# https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/api/core/v1/types.go
UNDECIDED: Final = frozenset(("SchedulingGated", "SchedulerError"))

# A deadline ends a pod wherever it is; what else ends one before it began comes of its node.
OF_NO_NODE: Final = frozenset(("DeadlineExceeded",))
REFUSED_S = 120.0
"""For how long a job's pods keep away from a node whose kubelet refused one. The scheduler would choose it again:
by what it knows the node fits. A kubelet tells within 10 s what changed of its node, and device plugins start
again within a minute. It is no judgement of the node: another job's pod may fit."""

QUICK_S = 60.0
FIRST_WAIT_S = 10.0
LONGEST_WAIT_S = 300.0
REMEMBERED_S = 600.0
"""A job that had no quick end for so long begins anew."""
SETTLING_S = 10.0
"""A pod that ended well means that the job is over, as a rule: the watchdog's word is on its way."""


@dataclass(slots=True)
class PodList:
    """The job's own pods, each in exactly one list.

    `live` count towards what the plan wants. `stranded` work still, but their node is to be left. `released` are
    needed no more. `leaving` are being deleted. `ended` are there for their logs only. `next_ordinal` is higher
    than any number in use, by whomever.
    """

    live: list[Pod] = field(default_factory=list)
    stranded: list[Pod] = field(default_factory=list)
    released: list[Pod] = field(default_factory=list)
    leaving: list[Pod] = field(default_factory=list)
    ended: list[Pod] = field(default_factory=list)
    next_ordinal: int = 0

    @property
    def there(self) -> list[Pod]:
        """All that have not ended."""
        return [*self.live, *self.stranded, *self.released, *self.leaving]


def sort_pods(job: Metadata, pods: Iterable[Pod], plan: Plan | None, nodes: Mapping[str, NodeObserved]) -> PodList:
    """Who counts and who does not. A pod of another owner counts for nothing but its name."""
    found, highest = PodList(), -1
    released = frozenset(plan.release) if plan else frozenset()
    left = {order.node for order in (*plan.avoid, *plan.cordon)} if plan else set()
    left |= {name for name, node in nodes.items() if node.state in TO_BE_LEFT}
    for pod in pods:
        ordinal = ordinal_of(job.name, pod.metadata.name)
        if ordinal is None:
            continue
        highest = max(highest, ordinal)
        if not any(owner.uid == job.uid for owner in pod.metadata.owner_references):
            continue
        if pod.metadata.deletion_timestamp is not None:
            found.leaving.append(pod)  # also one that has ended: it has no more to say
        elif has_ended(pod):
            found.ended.append(pod)
        elif pod.metadata.name in released:
            found.released.append(pod)
        elif pod.spec.node_name in left:
            found.stranded.append(pod)
        else:
            found.live.append(pod)
    found.next_ordinal = highest + 1
    return found


def pod_name(job: str, ordinal: int) -> str:
    """The pod's, and so the member's name."""
    return f"{job}-{ordinal}"


def ordinal_of(job: str, name: str) -> int | None:
    """The number in a pod's name, None when the name is not of this job's making."""
    prefix, _, number = name.rpartition("-")
    return int(number) if prefix == job and number.isascii() and number.isdigit() else None


# What a pod is doing.


def has_ended(pod: Pod) -> bool:
    """Whether no member will ever be in it: it has ended, or its trainer has, whatever else of it runs on."""
    return pod.status.phase in ENDED_PHASES or _trainers_end(pod) is not None


def ended_well(pod: Pod) -> bool:
    """Whether a pod that has ended did so with all its work done."""
    if pod.status.phase in ENDED_PHASES:
        return pod.status.phase == "Succeeded"
    end = _trainers_end(pod)
    return end is not None and end.exit_code == 0


def goes_on(pod: Pod) -> bool:
    """Whether a pod that has ended holds its place for another container, which nobody ends.

    Sidecars among its init containers are ended by their kubelet.
    """
    others = any(each.state.terminated is None for each in pod.status.container_statuses)
    return pod.status.phase not in ENDED_PHASES and others


def is_running(pod: Pod) -> bool:
    return pod.status.phase == "Running"


def state_of(pod: Pod) -> tuple[PodState, str]:
    """The pod's state and why it is so."""
    if has_ended(pod):
        return PodState.GONE, end_of(pod)
    if pod.metadata.deletion_timestamp is None:
        return (PodState.RUNNING, "") if is_running(pod) else (PodState.PENDING, why_pending(pod))
    if (disrupted := _condition(pod, "DisruptionTarget", "True")) is not None:
        return PodState.LEAVING, _told(disrupted.reason, disrupted.message)
    if pod.status.reason:
        return PodState.LEAVING, _told(pod.status.reason, pod.status.message)
    return PodState.LEAVING, "the pod is being deleted"


def end_of(pod: Pod) -> str:
    """How an ended pod ended."""
    if pod.status.reason:
        return _told(pod.status.reason, pod.status.message)
    ends = _ends(pod)
    failed = next((end for _, end in ends if end.exit_code), ends[0][1] if ends else None)
    if failed is None:
        return _told(pod.status.phase, pod.status.message)
    how = f"exit code {failed.exit_code}"
    if failed.reason not in ("", "Error", "Completed"):
        how = f"{failed.reason} ({how})"
    return _told(how, failed.message)


def ended_by(pod: Pod) -> PodEnd | None:
    """Who ends it, or ended it, where its node has no part in that."""
    if has_ended(pod) and (_is_over_its_storage(pod) or _is_over_its_memory(pod)):
        return PodEnd.OWN_LIMIT
    if (disrupted := _condition(pod, "DisruptionTarget", "True")) is not None:
        return PodEnd.DISPLACED if disrupted.reason in DISPLACING else None
    return PodEnd.DELETED if pod.metadata.deletion_timestamp is not None else None


def _is_over_its_storage(pod: Pod) -> bool:
    """Whether a kubelet evicted it for a limit on local storage that its own user set."""
    return pod.status.reason == "Evicted" and OVER_ITS_STORAGE.match(pod.status.message) is not None


def _is_over_its_memory(pod: Pod) -> bool:
    """Whether it ended for memory of which it has a limit, of its own or of all its containers together.

    One without dies when the node's memory is used up. A limit of the pod bounds each container that has none.
    Source: https://kubernetes.io/docs/tasks/configure-pod-container/assign-pod-level-resources/
    """
    spec = pod.spec
    failed = next(((name, end) for name, end in _ends(pod) if end.exit_code), None)
    if failed is None or failed[1].reason != "OOMKilled":
        return False
    containers = (*spec.containers, *spec.init_containers)
    own = any(each.name == failed[0] and "memory" in each.resources.limits for each in containers)
    return own or "memory" in spec.resources.limits


def why_pending(pod: Pod) -> str:
    """What a pod that does not run yet waits for; empty when it is on its way."""
    if (unscheduled := unschedulable(pod)) is not None:
        return unscheduled
    if (reason := undecided(pod)) is not None:
        return f"{reason}: {undecided_says(pod)}"
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting
        if waiting is not None and waiting.reason not in ORDINARY_WAITS:
            return _told(f"container {status.name}: {waiting.reason}", waiting.message)
    return ""


def late_in_s(pod: Pod, now: float) -> float | None:
    """How long until a start that did not begin is late, 0 when it is; None when it has begun, or has no node.

    Images and volumes come before the first container. What keeps them away stands in the pod's events alone.
    """
    bound = _condition(pod, "PodScheduled", "True")
    since = seconds_of(bound.last_transition_time) if bound is not None else None
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
    condition = _no_place(pod)
    return None if condition is None else _told(condition.reason or "Unschedulable", condition.message)


def unschedulable_since(pod: Pod) -> float | None:
    """Since when the scheduler finds no place for it, in wall seconds; None when it did not say so."""
    condition = _no_place(pod)
    return None if condition is None else seconds_of(condition.last_transition_time)


def undecided(pod: Pod) -> str | None:
    """The reason why it has no node though none was looked for; None when one was, or nothing was said yet."""
    condition = _condition(pod, "PodScheduled", "False")
    return condition.reason if condition is not None and condition.reason in UNDECIDED else None


def undecided_says(pod: Pod) -> str:
    """In words, of a pod that is undecided: by which gates, or what failed."""
    if gates := ", ".join(gate.name for gate in pod.spec.scheduling_gates):
        return _told("held by scheduling gates", gates)
    condition = _condition(pod, "PodScheduled", "False")
    return _told("the scheduler failed at it", condition.message if condition is not None else "")


def _no_place(pod: Pod) -> Condition | None:
    condition = _condition(pod, "PodScheduled", "False")
    return None if condition is None or condition.reason in UNDECIDED else condition


def ran_from_to(pod: Pod) -> tuple[float, float]:
    """When an ended pod began and ended, in wall seconds; its creation where nothing says.

    Where no container began: when it got its node, and when last something of it changed.
    """
    created = seconds_of(pod.metadata.creation_timestamp) or 0.0
    terminated = [end for _, end in _ends(pod)]
    begins = [each for each in (seconds_of(one.started_at) for one in terminated) if each is not None]
    ends = [each for each in (seconds_of(one.finished_at) for one in terminated) if each is not None]
    bound = _condition(pod, "PodScheduled", "True")
    since = seconds_of(bound.last_transition_time) if bound is not None else None
    changes = [seconds_of(each.last_transition_time) for each in pod.status.conditions]
    began = min(begins, default=created if since is None else since)
    changed = max((each for each in changes if each is not None), default=created)
    return began, max(ends, default=max(began, changed))


def refused_by(pod: Pod) -> str:
    """The node whose kubelet did not take it, or ended it before anything of it began; empty where none did.

    Such as OutOfcpu, OutOfnvidia.com/gpu, UnexpectedAdmissionError, NodeAffinity, TopologyAffinityError.
    Source: https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/lifecycle/predicate.go
    """
    reason = pod.status.reason
    refused = pod.status.phase == "Failed" and reason and reason not in OF_NO_NODE and not has_begun(pod)
    return pod.spec.node_name if refused else ""


def has_begun(pod: Pod) -> bool:
    """Whether anything of it runs, or ran."""
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    began = any(each.state.running is not None or each.state.terminated is not None for each in statuses)
    return began or pod.status.phase == "Running"


@dataclass(frozen=True, slots=True)
class Refusals:
    """Nodes that refused a pod of the job just now. `keep` are the names of the pods by which that is known,
    `changes_at` is when the next of them may be tried again, in wall seconds.
    """

    nodes: frozenset[str] = frozenset()
    keep: frozenset[str] = frozenset()
    changes_at: float | None = None


def refusals(ended: Iterable[Pod], now: float) -> Refusals:
    """What ended pods say of nodes that would not have them."""
    newest: dict[str, tuple[float, str]] = {}
    for pod in ended:
        at = ran_from_to(pod)[1]
        if (node := refused_by(pod)) and now < at + REFUSED_S:
            newest[node] = max(newest.get(node, (at, "")), (at, pod.metadata.name))
    return Refusals(
        frozenset(newest),
        frozenset(name for _, name in newest.values()),
        min((at + REFUSED_S for at, _ in newest.values()), default=None),
    )


def _condition(pod: Pod, type_: str, status: str) -> Condition | None:
    """The condition of that type, if it has that status."""
    found = next((each for each in pod.status.conditions if each.type == type_), None)
    return found if found is not None and found.status == status else None


def _trainer_of(pod: Pod) -> str:
    """The name of the container that runs the launcher. Admission may put others before it."""
    names = [each.name for each in pod.spec.containers]
    named = pod.metadata.annotations.get(TRAINER_NAME, TRAINER)
    return named if named in names or not names else names[0]


def _trainers_end(pod: Pod) -> Terminated | None:
    """How the trainer ended, None while it has not, or is to be started again."""
    name = _trainer_of(pod)
    again = any(each.name == name and each.restart_policy not in ("", "Never") for each in pod.spec.containers)
    ends = (each.state.terminated for each in pod.status.container_statuses if each.name == name)
    return None if again else next((end for end in ends if end is not None), None)


def _ends(pod: Pod) -> list[tuple[str, Terminated]]:
    """The containers that ended, by name, the trainer first: a sidecar that was ended for it comes second.

    Of the init containers when no other began: one of them failed.
    """
    trainer = _trainer_of(pod)
    for statuses in (pod.status.container_statuses, pod.status.init_container_statuses):
        ended = [(each.name, each.state.terminated) for each in statuses]
        if found := [(name, end) for name, end in ended if end is not None]:
            return sorted(found, key=lambda each: each[0] != trainer)
    return []


def _told(what: str, message: str) -> str:
    text = f"{what}: {message.strip()}" if message.strip() else what
    return text if len(text) <= MESSAGE_LENGTH_MAX else f"{text[: MESSAGE_LENGTH_MAX - 1]}…"


# Pods that end right after their start: each is replaced later than the one before.
#
# What is known is read from the ended pods that are there; how many came before them is written on each pod.


@dataclass(frozen=True, slots=True)
class QuickEnd:
    """One pod that ended quickly: the `count`th in a row. Nothing takes its place before `due`."""

    pod: Pod
    count: int
    due: float

    def says(self) -> str:
        """In a sentence, the same for as long as it is the newest."""
        began, ended = ran_from_to(self.pod)
        return f"{self.pod.metadata.name} ended {ended - began:.0f} s after its start: {end_of(self.pod)}"

    def says_when(self, now: float) -> str:
        """With how many there were, and when the next one starts while that is to come."""
        says = f"{self.says()}; {self.count} in a row"
        return f"{says}, the next one starts at {text_of(self.due)}" if now < self.due else says


@dataclass(frozen=True, slots=True)
class CrashLoop:
    """`newest` is the newest quick end, None when there is none; `count` goes on the next pod.

    `keep` are names of pods that are still needed to know this: the place of each stays empty for now.
    `changes_at` is when that changes next.
    """

    newest: QuickEnd | None = None
    count: int = 0
    changes_at: float | None = None
    keep: frozenset[str] = frozenset()


def crash_loop(ended: Sequence[Pod], now: float) -> CrashLoop:
    """What the ended pods of a job say of its starts."""
    quick: list[QuickEnd] = []
    held: dict[str, float] = {}  # until when the place of each stays empty
    for pod in ended:
        began, at = ran_from_to(pod)
        if ended_well(pod):
            due = at + SETTLING_S
        elif at - began < QUICK_S:
            text = pod.metadata.annotations.get(QUICK_ENDS, "")
            count = (min(int(text), 16) if text.isascii() and text.isdigit() else 0) + 1
            due = at + min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (count - 1))
            if now < due + REMEMBERED_S:
                quick.append(QuickEnd(pod, count, due))
        else:
            continue  # it ran for a while
        if now < due:
            held[pod.metadata.name] = due
    newest = max(quick, key=lambda each: (each.due, each.count), default=None)
    looping = newest if newest is not None and now < newest.due + QUICK_S else None
    over = [] if looping is None else [looping.due + QUICK_S]
    return CrashLoop(
        newest=looping,
        count=max((each.count for each in quick), default=0),
        changes_at=min((*held.values(), *over), default=None),
        keep=frozenset(held),
    )
