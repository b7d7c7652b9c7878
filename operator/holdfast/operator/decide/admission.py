"""Which of several jobs that half fit keeps its pods: one goes on, the others yield and are tried in turn. Pure.

Kubernetes places pod by pod, so two jobs may each hold half of what they need and wait for each other for ever. A
job that is short of `nodes.min` contends; of those that contend for the same nodes the one that is ahead keeps its
pods, the others yield theirs and make none. One that does not fit though the others yielded has had its turn after
`TURN_S`: it goes to the end of the queue, and until it fits every job that had no turn is ahead of it, so that one
that never fits costs each other job a turn once. What is decided stands in the condition Admitted, with reason and
transition time, so that a restarted operator goes on where the one before was.

Every job is judged by itself, from the same records: the first of the queue alone may go, so that two looks at one
time do not let two jobs go. A job that has its minimum is no contender, and nobody touches it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from holdfast.api.jobstatus import Condition, TrainingJobStatus
from holdfast.api.status import JobPhase
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.decide.pods import has_ended, unschedulable_since
from holdfast.operator.decide.template import Template, read_template
from holdfast.operator.kube.objects import Job, Pod, seconds_of

SHORT_S = 30.0
"""How long a job may be short before it counts: the scheduler places thousands of pods within it."""
TURN_S = 300.0
"""How long a job is tried while others wait. A cluster autoscaler brings a node within a few minutes."""
STARTING_S = 60.0
"""How long a job that was just let in keeps others out before the scheduler has said anything of its pods."""


class Standing(Enum):
    """Where a job stands. The value is the reason of its condition Admitted."""

    ADMITTED = "Admitted"
    RETRIED = "Retried"  # admitted again after its turn was over
    YIELDED = "Yielded"
    TURN_OVER = "TurnOver"


HELD = frozenset((Standing.YIELDED, Standing.TURN_OVER))


@dataclass(frozen=True, slots=True)
class Contender:
    """A job that has fewer pods in place than it needs, or that is held back.

    `rank` is lower for a job that is ahead: it has trained, had no turn yet, a higher priority, is older, or its
    name comes first.
    `short_since` is when the scheduler first said no, None while it has not; `since` is when `standing` began;
    both in wall seconds. `placed` are its pods that have a node.
    """

    key: str
    rank: tuple[bool, bool, int, str, str]
    selector: Mapping[str, str]
    placed: int
    standing: Standing
    since: float
    short_since: float | None

    @property
    def held(self) -> bool:
        return self.standing in HELD

    def short_for_s(self, now: float) -> float:
        """How long it has been short in the turn it has now; negative while it is not."""
        return -1.0 if self.held or self.short_since is None else now - max(self.short_since, self.since)


def judge(job: Contender, others: Iterable[Contender], now: float) -> Standing:
    """Where `job` stands from now on, among all `others` that contend."""
    # One node may be right for both: no label is wanted with two values.
    rivals = [
        each
        for each in others
        if each.key != job.key
        and all(each.selector.get(label, value) == value for label, value in job.selector.items())
    ]
    if job.held:
        # Who had no turn yet comes first, by rank; then those who had, the longest ago first.
        def place(each: Contender) -> tuple[bool, float, tuple[bool, bool, int, str, str]]:
            turn_over = each.standing is Standing.TURN_OVER
            return turn_over, each.since if turn_over else 0.0, each.rank

        first = all(place(job) < place(each) for each in rivals if each.held)
        contending = [each for each in rivals if not each.held]
        if not first or any(each.short_since is not None or now - each.since < STARTING_S for each in contending):
            return job.standing
        return Standing.RETRIED if job.standing is Standing.TURN_OVER else Standing.ADMITTED
    short_for_s = job.short_for_s(now)
    if short_for_s < SHORT_S:
        return job.standing
    ahead = [
        each
        for each in rivals
        if each.rank < job.rank and (each.standing is Standing.YIELDED or each.short_for_s(now) >= SHORT_S)
    ]
    # Jobs that hold no node are in nobody's way.
    if ahead and (job.placed or any(each.placed or each.held for each in ahead)):
        return Standing.TURN_OVER if job.standing is Standing.RETRIED else Standing.YIELDED
    waits = any(each.held for each in rivals)
    return Standing.TURN_OVER if waits and short_for_s >= TURN_S else job.standing


CONDITION = "Admitted"
IN_QUEUE = "QueueAdmitted"
KUBERNETES_OWN = frozenset((None, "", "default-scheduler"))
"""Another scheduler, as a rule, places all pods of a job or none."""
TRAINS = (JobPhase.RUNNING, JobPhase.STALLED)
OUT_OF_IT = (*TRAINS, JobPhase.SUCCEEDED, JobPhase.FAILED)


def contender(job: Job, spec: TrainingJob, pods: Iterable[Pod]) -> Contender | None:
    """The job as it contends; None when it does not: it has what it needs, or its pods are another's to place."""
    template = read_template(spec.spec.template)
    recorded = job.recorded()
    gone = job.metadata.deletion_timestamp is not None or recorded.finished_at is not None
    # Its queue keeps it out: it has no pods, and waits for none.
    gone = gone or ((queue := recorded.condition(IN_QUEUE)) is not None and queue.status == "False")
    if gone or spec.spec.suspend or recorded.phase in OUT_OF_IT:
        return None
    if not isinstance(template, Template) or template.spec.scheduler_name not in KUBERNETES_OWN:
        return None
    there = [pod for pod in pods if not has_ended(pod) and pod.metadata.deletion_timestamp is None]
    placed = sum(1 for pod in there if pod.spec.node_name)
    condition = recorded.condition(CONDITION)
    standing = standing_of(condition)
    if placed >= spec.spec.nodes.min and standing not in HELD:
        return None
    says_no = [unschedulable_since(pod) for pod in there]
    since = seconds_of(condition.last_transition_time) if condition is not None else None
    key, created = f"{job.metadata.namespace}/{job.metadata.name}", job.metadata.creation_timestamp or ""
    had_a_turn = standing in (Standing.TURN_OVER, Standing.RETRIED)
    return Contender(
        key=key,
        rank=(recorded.started_at is None, had_a_turn, -(priority_of(recorded, there) or 0), created, key),
        selector=template.spec.node_selector or {},
        placed=placed,
        standing=standing,
        since=seconds_of(created) or 0.0 if since is None else since,
        short_since=min((each for each in says_no if each is not None), default=None),
    )


def standing_of(condition: Condition | None) -> Standing:
    """As it was written down. What cannot be read holds nobody back."""
    written = next((each for each in Standing if condition is not None and each.value == condition.reason), None)
    return Standing.ADMITTED if written is None else written


def priority_of(recorded: TrainingJobStatus, pods: Iterable[Pod]) -> int | None:
    """Of its pods, as the API server filled it in; of a job that yielded them, as it was. None: nothing says."""
    return next((pod.spec.priority for pod in pods if pod.spec.priority is not None), recorded.priority)
