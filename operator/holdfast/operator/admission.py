"""Which jobs contend for nodes, read from what the cluster shows of them; `turns` says which of them goes on."""

from collections.abc import Iterable

from holdfast.api.status import JobPhase
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.objects import Condition, Job, Pod
from holdfast.operator.podstate import has_ended, unschedulable_since
from holdfast.operator.recorded import Recorded, read_recorded
from holdfast.operator.template import Template, read_template
from holdfast.operator.timestamp import seconds_of
from holdfast.operator.turns import HELD, Contender, Standing

CONDITION = "Admitted"
KUBERNETES_OWN = frozenset((None, "", "default-scheduler"))
"""Another scheduler, as a rule, places all pods of a job or none."""
TRAINS = (JobPhase.RUNNING, JobPhase.STALLED)
OUT_OF_IT = frozenset(phase.value for phase in (*TRAINS, JobPhase.SUCCEEDED, JobPhase.FAILED))


def contender(job: Job, spec: TrainingJob, pods: Iterable[Pod]) -> Contender | None:
    """The job as it contends; None when it does not: it has what it needs, or its pods are another's to place."""
    template = read_template(spec.spec.template)
    recorded, _ = read_recorded(job.status)
    if not isinstance(template, Template) or _is_out_of_it(job, spec, recorded):
        return None
    if template.spec.scheduler_name not in KUBERNETES_OWN:
        return None
    there = [pod for pod in pods if not has_ended(pod) and pod.metadata.deletion_timestamp is None]
    placed = sum(1 for pod in there if pod.spec.node_name)
    condition = recorded.condition(CONDITION)
    standing = standing_of(condition)
    if placed >= spec.spec.nodes.min and standing not in HELD:
        return None
    says_no = [unschedulable_since(pod) for pod in there]
    since = seconds_of(condition.last_transition_time) if condition is not None else None
    created = job.metadata.creation_timestamp or ""
    had_a_turn = standing in (Standing.TURN_OVER, Standing.RETRIED)
    return Contender(
        key=_key(job),
        rank=(recorded.started_at is None, had_a_turn, -(priority_of(recorded, there) or 0), created, _key(job)),
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


def _is_out_of_it(job: Job, spec: TrainingJob, recorded: Recorded) -> bool:
    gone = job.metadata.deletion_timestamp is not None or recorded.finished_at is not None
    return gone or spec.spec.suspend or recorded.phase in OUT_OF_IT


def priority_of(recorded: Recorded, pods: Iterable[Pod]) -> int | None:
    """Of its pods, as the API server filled it in; of a job that yielded them, as it was. None: nothing says."""
    return next((pod.spec.priority for pod in pods if pod.spec.priority is not None), recorded.priority)


def _key(job: Job) -> str:
    return f"{job.metadata.namespace}/{job.metadata.name}"
