"""One job as the steps of reconcile look at it: what is observed, sorted out once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from holdfast.api.errors import InvalidSpec, Problem
from holdfast.api.jobstatus import TrainingJobStatus
from holdfast.api.nodecondition import Meaning
from holdfast.api.plan import JobReport, NodeObserved, NodeState, Plan
from holdfast.api.status import JobPhase
from holdfast.api.trainingjob import TrainingJob, policy_of
from holdfast.operator.decide.action import Action
from holdfast.operator.decide.admission import CONDITION, Contender, Standing, contender, judge, standing_of
from holdfast.operator.decide.conditionmap import departure
from holdfast.operator.decide.inqueue import InQueue, in_queue
from holdfast.operator.decide.nodes import holds_nobody_off, state_of
from holdfast.operator.decide.observed import Mode, Observed, Options
from holdfast.operator.decide.offers import offer_of
from holdfast.operator.decide.places import places_of
from holdfast.operator.decide.pods import CrashLoop, PodList, Refusals, crash_loop, refusals, sort_pods
from holdfast.operator.decide.policycheck import CHECKED, Change, stand
from holdfast.operator.decide.policycheck import Standing as PolicyStanding
from holdfast.operator.decide.remediations import Asker, remediated
from holdfast.operator.decide.template import Template, Toleration, check_template, read_template
from holdfast.operator.kube.objects import HOSTNAME_LABEL, Metadata, seconds_of

ENDED = frozenset((JobPhase.SUCCEEDED, JobPhase.FAILED))
NO_CHECK_IMAGE = (
    "this operator was told no image for it (--policy-check-image; the chart's operator.policyChecks.enabled)"
)


@dataclass(frozen=True)
class Decision:
    """What one branch of reconcile comes to; as in `Outcome`."""

    actions: tuple[Action, ...]
    reason: str
    requeue_after_s: float | None = None


@dataclass(frozen=True)
class Context:
    """`job` is None when the spec cannot be read; `problems` are the reasons why it is refused, if it is.

    `report` and `plan` are the watchdog's about this very job, not about an earlier one of its name; None as long
    as the watchdog has not taken it. `connected` is whether it is there. `recorded` is the status as it was last
    written.

    `invalid` is why no pod may be made of the spec, None when one may. `ended` is how the job ended, None while it
    has not; `deleted_at` when somebody deleted it, in wall seconds, None when nobody has.

    `nodes` are those of the job's pods and those the plan names. `tolerations` are the pods', None when nobody can
    tell. `contends` is the job as it contends for nodes, None when it does not; `standing` is whether it may have
    pods while other jobs wait for the same nodes. `queue` is how it stands in a queue of Kueue.
    """

    observed: Observed
    options: Options
    now: float
    metadata: Metadata
    id: str
    job: TrainingJob | None
    problems: tuple[Problem, ...]
    invalid: str | None
    recorded: TrainingJobStatus
    report: JobReport | None
    plan: Plan | None
    connected: bool
    ended: JobPhase | None
    deleted_at: float | None
    tolerations: Sequence[Toleration] | None
    nodes: Mapping[str, NodeObserved]
    pods: PodList
    crash_loop: CrashLoop
    refusals: Refusals
    contends: Contender | None
    standing: Standing
    queue: InQueue

    @property
    def forgotten(self) -> str | None:
        """What to do about a watchdog that does not know a job which it had led through rounds; None when it does.

        Its store was emptied, or is another one, or an older copy: the job would get round numbers that its
        launchers and its checkpoints have seen already, and nodes that were found bad.
        """
        if not self.connected or self.report is not None or self.options.mode is not Mode.ACT:
            return None
        if not self.recorded.round or self.ended is not None or self.deleted_at is not None:
            return None
        told = self.observed.report
        if told is not None and told.generation is None and told.trouble is not None:
            return f"the watchdog decides nothing of this job: {told.trouble}"
        return (
            f"the watchdog has no journal of this job, which had reached round {self.recorded.round}: its store "
            "was emptied or is another one; restore the store, or delete the TrainingJob and create it again, "
            "which begins anew from its newest checkpoint"
        )

    @cached_property
    def changed(self) -> PolicyStanding | None:
        """How a changed policy stands; None where the spec cannot be read."""
        if self.job is None:
            return None
        observed, report = self.observed, self.report
        wanted = replace(policy_of(self.job), admitted=self.queue.admitted)
        change = Change(
            mode=self.job.spec.policy_check,
            wanted=wanted,
            known=None if report is None else report.policy,
            has_trained=report is not None and report.status.step is not None,
            checks=observed.checks,
            recorded=self.recorded.condition(CHECKED),
            refused=observed.check_refused,
            never="" if self.options.check_image else NO_CHECK_IMAGE,
            limit_s=self.options.check_s,
        )
        return stand(change, self.now)

    @property
    def taken(self) -> bool:
        """Whether the watchdog has this very spec, with what is held back of it, or a newer one that is not seen
        here yet, and knows what the job's queue admitted.
        """
        report, changed = self.report, self.changed
        if report is None or (report.generation or 0) < self.metadata.generation:
            return False
        is_held = report.policy is not None and report.policy.held
        as_held = changed is None or is_held == changed.policy.held
        return as_held and report.admitted == self.queue.admitted

    @property
    def ended_at(self) -> float:
        """When the end was first seen."""
        at = seconds_of(self.recorded.finished_at)
        return self.now if at is None else at

    @cached_property
    def avoided(self) -> list[str]:
        """Host name labels of the nodes to keep away from; a node that is not there has, as a rule, its own name.

        Those of the plan, and those that are to be left and that the scheduler would choose again: the pods
        tolerate their taints, or it is a condition that says so, which holds no pod off.
        """
        names = {order.node for order in (*self.plan.avoid, *self.plan.cordon)} if self.plan else set()
        leaving = self.options.condition_map.asks_to_leave
        names |= {
            name
            for name, node in self.observed.nodes.items()
            if leaving(name, node.status.conditions)
            and not node.spec.unschedulable
            and holds_nobody_off(node, self.tolerations)
        }
        if self.tolerations:
            names |= {
                node.metadata.name
                for node in self.observed.nodes.values()
                if node.spec.taints
                and holds_nobody_off(node, self.tolerations)
                and state_of(node, self.options, self.tolerations)[0] is NodeState.DRAINING
            }
        return self._host_names(names)

    @cached_property
    def refused(self) -> list[str]:
        """Host name labels of the nodes that would have no pod of the job just now, and are not avoided anyway.

        One that just stopped has no taint yet: a pod made in that moment would be bound to it.
        """
        open_ = {each for each in self._not_ready if holds_nobody_off(self.observed.nodes[each], self.tolerations)}
        return [name for name in self._host_names(self.refusals.nodes | open_) if name not in self.avoided]

    @cached_property
    def kept_off(self) -> frozenset[str]:
        """Host name labels of the nodes that no pod of the job would find a place on now."""
        return frozenset((*self.refused, *self.avoided, *self._host_names(self._not_ready)))

    @cached_property
    def _not_ready(self) -> list[str]:
        states = {name: state_of(node, self.options, None)[0] for name, node in self.observed.nodes.items()}
        return [name for name, state in states.items() if state is NodeState.NOT_READY]

    def _host_names(self, names: Iterable[str]) -> list[str]:
        nodes = {name: self.observed.nodes.get(name) for name in names}
        labels = (node.metadata.labels.get(HOSTNAME_LABEL, name) if node else name for name, node in nodes.items())
        return sorted(labels)


def context_of(observed: Observed, options: Options, now: float) -> Context:
    """Sort out what is observed."""
    job, report, metadata, recorded = observed.job, observed.report, observed.job.metadata, observed.job.recorded()
    if isinstance(observed.spec, InvalidSpec):
        spec, problems = None, observed.spec.problems
    else:
        spec, problems = observed.spec, check_template(observed.spec)
    invalid = "; ".join(str(problem) for problem in problems) or None
    if not problems and observed.trial.refused is not None:
        invalid = f"spec.template: the API server refuses a pod of it: {observed.trial.refused}"
    if report is not None and (report.generation is None or report.uid != metadata.uid):
        report = None
    plan = observed.plan if report is not None else None
    # A watchdog that forgot an ended job does not undo its end.
    if report is not None:
        phase: JobPhase | None = report.status.phase
    else:
        phase = recorded.phase if recorded.finished_at is not None else None
    deleted, connected = metadata.deletion_timestamp, observed.heard_age_s <= 0
    # Where the spec cannot be read, the pods that run were made of an earlier one.
    template = read_template(spec.spec.template) if spec is not None else None
    tolerations = template.spec.tolerations or () if isinstance(template, Template) else None
    key = f"{metadata.namespace}/{metadata.name}"
    nodes = _nodes_of(observed, options, plan, spec.spec.placement.pack if spec is not None else (), tolerations)
    pods = sort_pods(metadata, observed.pods, plan, nodes)
    contends = contender(job, spec, observed.pods) if spec is not None else None
    queue = in_queue(metadata, spec, observed.queueing, options, now)
    if not connected:
        # It stays as it was: nobody would make pods for whom others give way.
        standing = standing_of(recorded.condition(CONDITION))
    else:
        standing = Standing.ADMITTED if contends is None else judge(contends, observed.rivals, now)
    return Context(
        observed=observed,
        options=options,
        now=now,
        metadata=metadata,
        id=key,
        job=spec,
        problems=problems,
        invalid=invalid,
        recorded=recorded,
        report=report,
        plan=plan,
        connected=connected,
        ended=phase if phase in ENDED else None,
        deleted_at=None if deleted is None else seconds_of(deleted) or now,
        tolerations=tolerations,
        nodes=nodes,
        pods=pods,
        crash_loop=crash_loop(pods.ended, now),
        refusals=refusals(pods.ended, now),
        contends=contends,
        standing=standing,
        queue=queue,
    )


def _nodes_of(
    observed: Observed,
    options: Options,
    plan: Plan | None,
    pack: Sequence[str],
    tolerations: Sequence[Toleration] | None,
) -> Mapping[str, NodeObserved]:
    names = {pod.spec.node_name for pod in observed.pods if pod.spec.node_name}
    if plan is not None:
        names |= {order.node for order in (*plan.avoid, *plan.cordon)} | set(plan.returned)
    about = observed.job.metadata
    asker = Asker(f"{about.namespace}/{about.name}", about.uid)
    repaired = {
        order.node: incident
        for order in (plan.cordon if plan is not None else ())
        if (incident := remediated(asker, order, observed.remediations.get(order.node)))
    }
    seen: dict[str, NodeObserved] = {}
    for name in sorted(names):
        node = observed.nodes.get(name)
        if node is not None:
            state, reason = state_of(node, options, tolerations)
            # The closest of the domains the job packs by: nodes in it share power and cooling.
            labels = node.metadata.labels
            rack = next((labels[domain] for domain in pack if labels.get(domain)), "")
            conditions = options.condition_map.told(node.status.conditions)
            if state is NodeState.READY and (leave := departure(conditions)):
                state, reason = NodeState.DRAINING, leave
            # Whoever says that something holds which it is to be left for does not take the repair for one.
            holds = any(each.means is Meaning.EVICT for each in conditions)
            incident = "" if holds else repaired.get(name, "")
            offer = offer_of(labels)
            places = places_of(labels, pack, options.place_labels)
            seen[name] = NodeObserved(name, state, reason, rack, offer, conditions, incident, places)
        elif not observed.nodes:
            # A cluster without any node is an operator that cannot see nodes.
            seen[name] = NodeObserved(name, NodeState.UNKNOWN, "no node can be seen")
        else:
            seen[name] = NodeObserved(name, NodeState.GONE, "there is no such node")
    return seen
