"""The condition by which Holdfast tells others what it proved of a node: HoldfastHealthy.

False while the plan keeps the node out of service for an incident, Unknown while it is back and on probation, True
once it is trusted again. Which job says so is in the message: a job takes back what it said itself, and nothing
else.
"""

import re
from collections.abc import Mapping
from typing import Final

from holdfast.api.jobstatus import Condition
from holdfast.api.plan import NodeOrder, Plan
from holdfast.api.xid import Recovery
from holdfast.operator.decide.action import SetNodeHealth
from holdfast.operator.decide.conditionmap import OURS
from holdfast.operator.kube.objects import Node, text_of

REASONS: Final[Mapping[Recovery, str]] = {
    Recovery.RESET_GPU: "NeedsGpuReset",
    Recovery.REBOOT_NODE: "NeedsReboot",
    Recovery.REPLACE: "NeedsReplacement",
}
FAULTY: Final = "Faulty"
_SIGNED: Final = re.compile(r" \(TrainingJob ([^ ,)]+)(?:, [^)]*)?\)$")


def health_of(node: Node) -> Condition | None:
    """What Holdfast says of the node, None when it never said anything."""
    return next((each for each in node.status.conditions if each.type == OURS), None)


def said_by(health: Condition | None) -> str:
    """The job whose word it is, as namespace/name; empty when there is none."""
    signed = None if health is None else _SIGNED.search(health.message)
    return "" if signed is None else signed[1]


def told_health(
    job: str, plan: Plan, nodes: Mapping[str, Node], failed: Mapping[str, str], now: float
) -> tuple[SetNodeHealth, ...]:
    """What is to be written. `failed` are nodes whose remediation failed, and why."""
    found = []
    for order in plan.cordon:
        if (node := nodes.get(order.node)) is not None:
            found.append(_faulty(job, node, order, failed.get(order.node), now))
    kept = {order.node for order in plan.cordon}
    for name in plan.returned:
        node = nodes.get(name)
        if node is not None and name not in kept and said_by(health_of(node)) == job:
            found.append(_returned(job, node, on_probation=name in plan.trying, now=now))
    return tuple(each for each in found if each is not None)


def returned_health(job: str, node: Node, now: float) -> SetNodeHealth | None:
    """What is to be written of a node that somebody returned for a job that is gone; None: it said nothing."""
    return _returned(job, node, on_probation=False, now=now) if said_by(health_of(node)) == job else None


def _faulty(job: str, node: Node, order: NodeOrder, failed: str | None, now: float) -> SetNodeHealth | None:
    health = health_of(node)
    if health is not None and health.status == "False" and said_by(health) not in ("", job):
        return None  # another job found something, and says so already
    says = order.reason if failed is None else f"{order.reason}; its remediation failed: {failed}"
    reason = REASONS.get(order.remedy, FAULTY)
    return _changed(node, "False", reason, f"{says} (TrainingJob {job}, {order.incident or 'on request'})", now)


def _returned(job: str, node: Node, *, on_probation: bool, now: float) -> SetNodeHealth | None:
    if on_probation:
        says = "it is back, and gets ranks last until it has passed its tests"
        return _changed(node, "Unknown", "OnProbation", f"{says} (TrainingJob {job})", now)
    return _changed(node, "True", "Trusted", f"nothing is held against it (TrainingJob {job})", now)


def _changed(node: Node, status: str, reason: str, message: str, now: float) -> SetNodeHealth | None:
    """None when it says the same already. The transition time moves only with the status."""
    known = health_of(node)
    if known is not None and (known.status, known.reason, known.message) == (status, reason, message):
        return None
    kept = known.last_transition_time if known is not None and known.status == status else None
    return SetNodeHealth(node.metadata.name, status, reason, message, kept or text_of(now))
