"""What people are told: each event once.

Events follow from the difference between the status as it was written last and as it is now, so a restarted
operator repeats none. What was done to pods and nodes follows from the actions: the same state does not ask for
them again.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.api.incident import Incident, IncidentState
from holdfast.api.status import JobPhase
from holdfast.operator.action import Action, Cordon, CreatePod, SetFinalizer, Uncordon
from holdfast.operator.admission import CONDITION
from holdfast.operator.case import Case, Decision
from holdfast.operator.conditions import UNSEEN
from holdfast.operator.departure import WITHOUT_CHECKPOINT, waiting
from holdfast.operator.objects import Pod
from holdfast.operator.observed import KubeEvent
from holdfast.operator.podstate import ran_from_to, state_of
from holdfast.operator.roll import TO_BE_LEFT
from holdfast.operator.timestamp import seconds_of

MESSAGE_LENGTH_MAX = 1000  # the API server takes 1024 bytes
NAMES_SHOWN = 5
OF_ACTIONS = frozenset(("MemberReplaced", "NodeCordoned", "NodeReturned", "WoundUp"))


def chronicle(case: Case, decision: Decision, status: Mapping[str, Any]) -> tuple[KubeEvent, ...]:
    """What is new. `status` is the status as it is after this reconcile."""
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    events = (
        *_spec(case, conditions),
        *_template(case, conditions),
        *_turn(case, conditions),
        *_life(case, status),
        *_incidents(case),
        *_watchdog(case, conditions),
        *_done(case, decision),
    )
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
            case SetFinalizer(held=False):
                taken_back.append(("WoundUp", ""))
    return tuple(
        each
        for each in events
        if not any(each.reason == reason and each.message.startswith(start) for reason, start in taken_back)
    )


def only_now(events: Iterable[KubeEvent]) -> tuple[KubeEvent, ...]:
    """Those that no later look comes to: as long as the status could not be written, the others come again."""
    return tuple(each for each in events if each.reason in OF_ACTIONS)


def _spec(case: Case, conditions: Mapping[str, Any]) -> Iterable[KubeEvent]:
    now, before = conditions.get("InvalidSpec"), case.recorded.condition("InvalidSpec")
    if now is None or now["status"] != "True":
        return
    if before is None or (before.status, before.message) != ("True", now["message"]):
        reason = "TemplateRefused" if now["reason"] == "TemplateRefused" else "InvalidSpec"
        yield KubeEvent(reason, now["message"], warning=True)


def _template(case: Case, conditions: Mapping[str, Any]) -> Iterable[KubeEvent]:
    now, before = conditions.get("UpToDate"), case.recorded.condition("UpToDate")
    was = before.status if before is not None else "Unknown"
    if now is not None and now["status"] == "False" and was != "False":
        yield KubeEvent("TemplateChanged", now["message"])


def _turn(case: Case, conditions: Mapping[str, Any]) -> Iterable[KubeEvent]:
    now, before = conditions.get(CONDITION), case.recorded.condition(CONDITION)
    was = before.status if before is not None else "True"
    if now is not None and now["status"] != was:
        if now["status"] == "False":
            yield KubeEvent("Yielded", now["message"])
        else:
            yield KubeEvent("Readmitted", "its pods are made: no job that is ahead of it waits for the same nodes")


def _life(case: Case, status: Mapping[str, Any]) -> Iterable[KubeEvent]:
    """The job's phases, as far as people wait for them."""
    report, before = case.report, case.recorded
    if report is None:
        return
    if before.members is None:
        wanted = report.status.members.wanted
        yield KubeEvent("JobAccepted", f"the watchdog took the job; it wants {wanted} members")
    phase = report.status.phase
    suspended = phase is JobPhase.SUSPENDED
    if suspended and not before.holds("Suspended"):
        yield KubeEvent("Suspended", report.status.reason)
    if before.holds("Suspended") and not suspended and case.ended is None:
        yield KubeEvent("Resumed", report.status.reason)
    trains = phase is JobPhase.RUNNING and status.get("phase") == phase  # else nobody sees whether it does
    ready = before.condition("Ready")
    was = phase.value if ready is not None and ready.reason == UNSEEN else before.phase
    if trains and (was, before.round) != (phase.value, report.status.round):
        yield KubeEvent("Running", f"round {report.status.round}, world size {report.status.world_size}")
    if case.ended is not None and before.finished_at is None:
        failed = case.ended is JobPhase.FAILED
        yield KubeEvent("Failed" if failed else "Succeeded", report.status.reason, warning=failed)


def _incidents(case: Case) -> Iterable[KubeEvent]:
    if case.report is None:
        return
    before = {each.id: each.state for each in case.recorded.recent_incidents}
    for incident in reversed(case.report.incidents):
        known = before.get(incident.id)
        if known is None:
            yield KubeEvent("IncidentOpened", f"{_what(incident)}: {incident.cause}", warning=True)
        if known == incident.state.value:
            continue
        if incident.state is IncidentState.RECOVERED:
            yield KubeEvent("IncidentRecovered", f"{_what(incident)}: {_healed(incident)}")
        elif incident.state is IncidentState.PAGED:
            says = f"{_what(incident)}: a human is needed; {incident.cause}"
            yield KubeEvent("IncidentPaged", says, warning=True)


def _what(incident: Incident) -> str:
    return f"{incident.id}: {incident.kind.value} on {incident.blamed}"


def _healed(incident: Incident) -> str:
    took_s = incident.time_to_recover_s
    did = incident.actions[-1].does if incident.actions else "nothing had to be done"
    return did if took_s is None else f"{did}; recovered in {took_s:.1f} s"


def _watchdog(case: Case, conditions: Mapping[str, Any]) -> Iterable[KubeEvent]:
    now, before = conditions.get("WatchdogReachable"), case.recorded.condition("WatchdogReachable")
    if now is None:
        return
    was = before.status if before is not None else "Unknown"
    if now["status"] == "False" and was != "False":
        yield KubeEvent("WatchdogUnreachable", now["message"], warning=True)
    if now["status"] == "True" and was == "False":
        yield KubeEvent("WatchdogReachable", "the watchdog is back")


def _done(case: Case, decision: Decision) -> Iterable[KubeEvent]:
    created = [each.manifest["metadata"]["name"] for each in decision.actions if isinstance(each, CreatePod)]
    lost = _lost(case)
    if created and lost:
        yield KubeEvent("MemberReplaced", f"{_names(created)} in place of {_names(lost)}")
    for action in decision.actions:
        match action:
            case Cordon(node=node, reason=reason, incident=incident):
                by = f" ({incident})" if incident else ""
                yield KubeEvent("NodeCordoned", f"{node}: {reason}{by}", warning=True)
            case Uncordon(node=node):
                yield KubeEvent("NodeReturned", f"{node} is back in service")
            case SetFinalizer(held=False):
                yield KubeEvent("WoundUp", decision.reason, warning=_lost_a_checkpoint(case))


def _lost_a_checkpoint(case: Case) -> bool:
    return case.deleted_at is not None and waiting(case, case.deleted_at) in WITHOUT_CHECKPOINT


def _lost(case: Case) -> list[str]:
    """Who left since, and why. Ended pods are kept for their logs: they lead to a new pod only once.

    One that ended before the newest pod was made has been replaced already.
    """
    roll = case.roll
    newest = max((_created_at(pod) for pod in (*roll.there, *roll.ended)), default=0.0)
    ended = [pod for pod in roll.ended if ran_from_to(pod)[1] >= newest]
    gone = [f"{pod.metadata.name} ({state_of(pod)[1]})" for pod in (*ended, *roll.leaving)]
    moved = [f"{pod.metadata.name} (its node is to be left{_why_left(case, pod)})" for pod in roll.stranded]
    released = [f"{pod.metadata.name} (released{_why_left(case, pod)})" for pod in roll.released]
    return [*moved, *released, *reversed(gone)]


def _why_left(case: Case, pod: Pod) -> str:
    """What is held against its node, in words to follow others; empty when nothing is."""
    orders = case.plan.avoid if case.plan is not None else ()
    against = next((order.reason for order in orders if order.node == pod.spec.node_name), "")
    node = case.nodes.get(pod.spec.node_name)
    why = against or (node.reason if node is not None and node.state in TO_BE_LEFT else "")
    return f": {pod.spec.node_name}: {why}" if why else ""


def _created_at(pod: Pod) -> float:
    return seconds_of(pod.metadata.creation_timestamp) or 0.0


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN])
    more = len(names) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
