"""What people are told: each event once.

Events follow from the difference between the status as it was written last and as it is now, so a restarted
operator repeats none. What was done to pods and nodes follows from the actions: the same state does not ask for
them again.
"""

from collections.abc import Iterable, Iterator

from holdfast.api.incident import IncidentState
from holdfast.api.jobstatus import Condition, TrainingJobStatus
from holdfast.api.status import JobPhase
from holdfast.operator.decide.action import Action, AskForRemediation, Cordon, CreatePod, KubeEvent, Uncordon
from holdfast.operator.decide.admission import CONDITION
from holdfast.operator.decide.conditions import DROPPED, UNSEEN
from holdfast.operator.decide.context import Context, Decision
from holdfast.operator.decide.pods import TO_BE_LEFT, ran_from_to, state_of
from holdfast.operator.decide.policycheck import CHECKING, RESULTS
from holdfast.operator.kube.objects import Pod, seconds_of

MESSAGE_LENGTH_MAX = 1000  # the API server takes 1024 bytes
NAMES_SHOWN = 5
AMISS = frozenset(("Worse", "CheckFailed"))
"""What is amiss with a changed policy that takes effect all the same."""
OF_ACTIONS = frozenset(("MemberReplaced", "NodeCordoned", "NodeReturned", "RemediationAsked"))


def events_of(ctx: Context, decision: Decision, status: TrainingJobStatus) -> tuple[KubeEvent, ...]:
    """What is new. `status` is the status as it is after this reconcile."""
    events = (*_changed_conditions(ctx, status), *_life(ctx, status), *_incidents(ctx), *_done(ctx, decision))
    return tuple(KubeEvent(each.reason, each.message[:MESSAGE_LENGTH_MAX], each.warning) for each in events)


def unsaid(events: Iterable[KubeEvent], failed: Iterable[Action]) -> tuple[KubeEvent, ...]:
    """Without those that tell of what was tried and failed. It is told when it was done."""
    taken_back: list[tuple[str, str]] = []
    for action in failed:
        match action:
            case CreatePod():
                taken_back.append(("MemberReplaced", ""))
            case Cordon(node=node):
                taken_back.append(("NodeCordoned", f"{node}:"))
            case Uncordon(node=node):
                taken_back.append(("NodeReturned", f"{node} "))
            case AskForRemediation(manifest=manifest):
                taken_back.append(("RemediationAsked", f"{manifest['spec']['node']}:"))
    return tuple(
        each
        for each in events
        if not any(each.reason == reason and each.message.startswith(start) for reason, start in taken_back)
    )


def only_now(events: Iterable[KubeEvent]) -> tuple[KubeEvent, ...]:
    """Those that no later look comes to: as long as the status could not be written, the others come again."""
    return tuple(each for each in events if each.reason in OF_ACTIONS)


def _changed_conditions(ctx: Context, status: TrainingJobStatus) -> Iterator[KubeEvent]:
    """Of conditions that people wait for. One that was never written counts as what is usual of it."""
    before = {each.type: each for each in ctx.recorded.conditions}
    for now in status.conditions:
        was = before.get(now.type, Condition(now.type, "True" if now.type == CONDITION else "Unknown"))
        turned = now.status != was.status
        match now.type, now.status:
            case "InvalidSpec", "True" if turned or now.message != was.message:
                reason = "TemplateRefused" if now.reason == "TemplateRefused" else "InvalidSpec"
                yield KubeEvent(reason, now.message, warning=True)
            case "PodsAltered", "True" if turned or now.message != was.message:
                yield KubeEvent("PodsAltered", now.message, warning=now.reason == DROPPED)
            case "UpToDate", "False" if turned:
                yield KubeEvent("TemplateChanged", now.message)
            case "PolicyChecked", "False" if now.reason == CHECKING and was.reason != CHECKING:
                yield KubeEvent("PolicyCheckStarted", now.message)
            case "PolicyChecked", "False" if now.reason in RESULTS and was.reason != now.reason:
                yield KubeEvent("PolicyHeld", f"{now.reason}: {now.message}", warning=True)
            case "PolicyChecked", _ if now.reason in RESULTS and (turned or was.reason != now.reason):
                yield KubeEvent("PolicyChecked", f"{now.reason}: {now.message}", now.reason in AMISS)
            case "Admitted", "False" if turned:
                yield KubeEvent("Yielded", now.message)
            case "Admitted", _ if turned:
                says = "its pods are made: no job that is ahead of it waits for the same nodes"
                yield KubeEvent("Readmitted", says)
            case "QueueAdmitted", _ if ctx.ended is not None:
                continue  # over, it waits for nothing
            case "QueueAdmitted", "False" if was.status == "True":
                yield KubeEvent("QueueEvicted", f"{now.reason}: {now.message}", warning=True)
            case "QueueAdmitted", "False" if turned or now.reason != was.reason:
                yield KubeEvent("QueueWaiting", f"{now.reason}: {now.message}")
            case "QueueAdmitted", "True" if turned:
                yield KubeEvent("QueueAdmitted", now.message)
            case "WatchdogReachable", "False" if turned:
                yield KubeEvent("WatchdogUnreachable", now.message, warning=True)
            case "WatchdogReachable", "True" if was.status == "False":
                yield KubeEvent("WatchdogReachable", "the watchdog is back")


def _life(ctx: Context, status: TrainingJobStatus) -> Iterator[KubeEvent]:
    """The job's phases, as far as people wait for them."""
    report, before = ctx.report, ctx.recorded
    if report is None:
        return
    if before.members is None:
        wanted = report.status.members.wanted
        yield KubeEvent("JobAccepted", f"the watchdog took the job; it wants {wanted} members")
    phase = report.status.phase
    suspended, known = phase is JobPhase.SUSPENDED, before.condition("Suspended")
    was_suspended = known is not None and known.status == "True"
    if suspended and not was_suspended:
        yield KubeEvent("Suspended", report.status.reason)
    if was_suspended and not suspended and ctx.ended is None:
        yield KubeEvent("Resumed", report.status.reason)
    trains = phase is JobPhase.RUNNING and status.phase is phase  # else nobody sees whether it does
    ready = before.condition("Ready")
    was = phase if ready is not None and ready.reason == UNSEEN else before.phase
    if trains and (was, before.round) != (phase, report.status.round):
        yield KubeEvent("Running", f"round {report.status.round}, world size {report.status.world_size}")
    if ctx.ended is not None and before.finished_at is None:
        failed = ctx.ended is JobPhase.FAILED
        yield KubeEvent("Failed" if failed else "Succeeded", report.status.reason, warning=failed)


def _incidents(ctx: Context) -> Iterator[KubeEvent]:
    if ctx.report is None:
        return
    before = {each.id: each.state for each in ctx.recorded.recent_incidents}
    for incident in reversed(ctx.report.incidents):
        known = before.get(incident.id)
        what = f"{incident.id}: {incident.kind.value} on {incident.blamed}"
        if known is None:
            yield KubeEvent("IncidentOpened", f"{what}: {incident.cause}", warning=True)
        if known == incident.state.value:
            continue
        if incident.state is IncidentState.RECOVERED:
            did = incident.actions[-1].does if incident.actions else "nothing had to be done"
            took_s = incident.time_to_recover_s
            took = "" if took_s is None else f"; recovered in {took_s:.1f} s"
            yield KubeEvent("IncidentRecovered", f"{what}: {did}{took}")
        elif incident.state is IncidentState.PAGED:
            yield KubeEvent("IncidentPaged", f"{what}: a human is needed; {incident.cause}", warning=True)


def _done(ctx: Context, decision: Decision) -> Iterator[KubeEvent]:
    created = [each.manifest["metadata"]["name"] for each in decision.actions if isinstance(each, CreatePod)]
    if created and (lost := _lost(ctx)):
        yield KubeEvent("MemberReplaced", f"{_names(created)} in place of {_names(lost)}")
    for action in decision.actions:
        match action:
            case Cordon(node=node, reason=reason, incident=incident):
                by = f" ({incident})" if incident else ""
                yield KubeEvent("NodeCordoned", f"{node}: {reason}{by}", warning=True)
            case Uncordon(node=node):
                yield KubeEvent("NodeReturned", f"{node} is back in service")
            case AskForRemediation(manifest=manifest):
                asked = manifest["spec"]
                yield KubeEvent("RemediationAsked", f"{asked['node']}: {asked['action']}, for {asked['incident']}")


def _lost(ctx: Context) -> list[str]:
    """Who left since, and why. Ended pods are kept for their logs: they lead to a new pod only once.

    One that ended before the newest pod was made has been replaced already.
    """
    pods = ctx.pods
    created = (seconds_of(pod.metadata.creation_timestamp) for pod in (*pods.there, *pods.ended))
    newest = max((each or 0.0 for each in created), default=0.0)
    ended = [pod for pod in pods.ended if ran_from_to(pod)[1] >= newest]
    gone = [f"{pod.metadata.name} ({state_of(pod)[1]})" for pod in (*ended, *pods.leaving)]
    moved = [f"{pod.metadata.name} (its node is to be left{_why_left(ctx, pod)})" for pod in pods.stranded]
    released = [f"{pod.metadata.name} (released{_why_left(ctx, pod)})" for pod in pods.released]
    return [*moved, *released, *reversed(gone)]


def _why_left(ctx: Context, pod: Pod) -> str:
    """What is held against its node, in words to follow others; empty when nothing is."""
    orders = ctx.plan.avoid if ctx.plan is not None else ()
    against = next((order.reason for order in orders if order.node == pod.spec.node_name), "")
    node = ctx.nodes.get(pod.spec.node_name)
    why = against or (node.reason if node is not None and node.state in TO_BE_LEFT else "")
    return f": {pod.spec.node_name}: {why}" if why else ""


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN])
    more = len(names) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
