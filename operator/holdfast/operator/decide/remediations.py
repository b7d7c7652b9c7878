"""Remediation objects: asked for once for each fault, joined by other jobs, heard, and removed when they are over.

An object has its node's name, so that two operators, two jobs or two looks cannot ask twice; each job that waits
for it writes that into an annotation of its own. A node that fails again after a remediation that succeeded gets
the next stronger one in the same object, whose generation then tells which outcome is of which.

The same name as the node's, one at a time, is how medik8s and the Cluster API do it; an outcome by generation is
how Kubernetes does. Source: https://www.medik8s.io/remediation/remediation/,
https://cluster-api.sigs.k8s.io/tasks/automated-machine-management/healthchecking
"""

import hashlib
from collections.abc import Container, Iterator, Mapping
from typing import Any, Final

import msgspec

from holdfast.api.metadata import API_VERSION
from holdfast.api.plan import NodeOrder, Plan
from holdfast.api.remediation import RemediationAction, RemediationOutcome
from holdfast.api.xid import Recovery
from holdfast.operator.decide.action import AskForRemediation, ChangeRemediation, EndRemediation
from holdfast.operator.kube.objects import REMEDIATIONS, Node, Remediation, seconds_of

Manifest = dict[str, Any]
Asking = AskForRemediation | ChangeRemediation | EndRemediation
ASKED_BY: Final = "holdfast.dev/asked-by-"  # annotation, one of each job: the job, and its incident
REASON_LENGTH_MAX: Final = 1000
ACTIONS: Final[Mapping[Recovery, RemediationAction]] = {
    Recovery.RESET_GPU: RemediationAction.RESET_GPU,
    Recovery.REBOOT_NODE: RemediationAction.REBOOT,
    Recovery.REPLACE: RemediationAction.REPLACE,
}
ORDER: Final = tuple(RemediationAction)
WORDS: Final = 3  # of what an asker says


def outcome_of(remediation: Remediation) -> RemediationOutcome | None:
    """What became of what is asked for now; None: nobody has begun. An earlier spec's outcome says nothing."""
    status = remediation.recorded()
    generation = remediation.metadata.generation
    is_of_now = (status.observed_generation or 1) == generation
    return status.outcome if is_of_now else None


class Asker(msgspec.Struct, frozen=True):
    """A job that asks: namespace/name, and its uid. The next job of that name counts its incidents from one again,
    and what was done for this one is nothing that was done for it.
    """

    job: str
    uid: str

    @property
    def key(self) -> str:
        """The annotation that has its word. The next job of the name says its own there instead."""
        return ASKED_BY + hashlib.sha256(self.job.encode()).hexdigest()[:16]

    def word(self, order: NodeOrder) -> str:
        """What it says of an order."""
        return f"{self.job} {order.incident} {self.uid}"

    def said(self, remediation: Remediation) -> str:
        """Its word there; empty when it has none."""
        word = remediation.metadata.annotations.get(self.key, "")
        return word if word.endswith(f" {self.uid}") else ""


def remediated(asker: Asker, order: NodeOrder, remediation: Remediation | None) -> str:
    """The order's incident when what was asked for it succeeded, else empty."""
    if remediation is None or outcome_of(remediation) is not RemediationOutcome.SUCCEEDED:
        return ""
    return (order.incident or "") if asker.said(remediation) == asker.word(order) else ""


def failures(asker: Asker, plan: Plan, there: Mapping[str, Remediation]) -> dict[str, str]:
    """Why the remediation of nodes of this plan failed."""
    found = {}
    for order in plan.cordon:
        one = there.get(order.node)
        if one is not None and outcome_of(one) is RemediationOutcome.FAILED and asker.said(one):
            found[order.node] = one.recorded().message or "nobody says why"
    return found


def asked_for(
    asker: Asker, plan: Plan, nodes: Mapping[str, Node], there: Mapping[str, Remediation], occupied: Container[str]
) -> tuple[Asking, ...]:
    """What is to be asked for by the plan. A node that is `occupied` by pods of the job is not asked for yet."""
    actions: list[Asking] = []
    for order in plan.cordon:
        node = nodes.get(order.node)
        if order.incident is not None and node is not None and order.node not in occupied:
            actions += _for_order(asker, order, node, there.get(order.node))
    return tuple(actions)


def over(
    asker: Asker,
    plan: Plan,
    there: Mapping[str, Remediation],
    *,
    alive: Container[str],
    ttl_s: float,
    now: float,
) -> tuple[Asking, ...]:
    """What is to be done about objects that the plan has no use for. `alive` are the uids of all jobs."""
    wanted = {order.node for order in plan.cordon if order.incident is not None}
    actions: list[Asking] = []
    for name, one in there.items():
        if name not in wanted and one.metadata.deletion_timestamp is None:
            if outcome_of(one) is RemediationOutcome.SUCCEEDED:
                others = any(uid != asker.uid and uid in alive for _, uid in _askers(one))
                actions += _done_with(asker, one, others) if now >= _done_at(one, now) + ttl_s else ()
            else:
                actions += _withdrawn(asker, one)
    return tuple(actions)


def repaired_for_nobody(
    asker: Asker, there: Mapping[str, Remediation], alive: Container[str]
) -> Iterator[tuple[str, str, float]]:
    """Nodes that were repaired for jobs that are gone, so that nobody takes them back: each with that job, and
    when it was repaired. Only for jobs of the asker's namespace: others may be another operator's.
    """
    namespace = asker.job.partition("/")[0]
    for name, one in there.items():
        if outcome_of(one) is RemediationOutcome.SUCCEEDED:
            for job, uid in _askers(one):
                if uid not in alive and job.partition("/")[0] == namespace:
                    yield name, job, _done_at(one, 0.0)


def _askers(one: Remediation) -> Iterator[tuple[str, str]]:
    """The jobs that have a word there, with their uids."""
    for key, word in one.metadata.annotations.items():
        parts = word.split(" ")
        if key.startswith(ASKED_BY) and len(parts) == WORDS:
            yield parts[0], parts[-1]


def _for_order(asker: Asker, order: NodeOrder, node: Node, there: Remediation | None) -> Iterator[Asking]:
    action = ACTIONS.get(order.remedy)
    if action is None:
        return  # nobody can tell what would help: a human decides
    word = asker.word(order)
    if there is None:
        yield AskForRemediation(_manifest(asker, order, node, action))
        return
    if there.metadata.deletion_timestamp is not None or asker.said(there) == word:
        return
    change: Manifest = {"metadata": {"annotations": {asker.key: word}}}
    if outcome_of(there) is RemediationOutcome.SUCCEEDED:
        # It was mended, and is not well: something stronger, for whoever found that.
        others = {each: None for each in there.metadata.annotations if each.startswith(ASKED_BY)}
        change["metadata"]["annotations"] = {**others, asker.key: word}
        change["spec"] = _spec(asker.job, order, _stronger(there.spec.get("action"), action))
    yield ChangeRemediation(there.metadata.name, there.metadata.uid, there.metadata.resource_version, change)


def _done_with(asker: Asker, one: Remediation, others: bool) -> Iterator[Asking]:
    """What becomes of one that succeeded, once it was kept for its time: other jobs may still wait to be told."""
    name, uid = one.metadata.name, one.metadata.uid
    if not others:
        yield EndRemediation(name, uid)
    elif asker.said(one):
        yield _without_word(asker, one)


def _withdrawn(asker: Asker, one: Remediation) -> Iterator[Asking]:
    """What becomes of one that this job needs no more, or never asked for."""
    if not asker.said(one) or outcome_of(one) is RemediationOutcome.RUNNING:
        return
    if any(each.startswith(ASKED_BY) and each != asker.key for each in one.metadata.annotations):
        yield _without_word(asker, one)
    else:  # nobody has begun, or it failed and somebody returned the node all the same
        yield EndRemediation(one.metadata.name, one.metadata.uid)


def _without_word(asker: Asker, one: Remediation) -> ChangeRemediation:
    change: Manifest = {"metadata": {"annotations": {asker.key: None}}}
    return ChangeRemediation(one.metadata.name, one.metadata.uid, one.metadata.resource_version, change)


def _done_at(one: Remediation, default: float) -> float:
    done = seconds_of(one.recorded().completed_at)
    asked = seconds_of(one.metadata.creation_timestamp)
    return next((each for each in (done, asked) if each is not None), default)


def _stronger(before: object, wanted: RemediationAction) -> RemediationAction:
    """The next after what did not help, or what is wanted, if that is stronger; the strongest again and again."""
    known = [each for each in ORDER if each.value == before]
    after = ORDER[min(ORDER.index(known[0]) + 1, len(ORDER) - 1)] if known else ORDER[0]
    return max(after, wanted, key=ORDER.index)


def _manifest(asker: Asker, order: NodeOrder, node: Node, action: RemediationAction) -> Manifest:
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.metadata.name, "uid": node.metadata.uid}
    return {
        "apiVersion": API_VERSION,
        "kind": REMEDIATIONS.kind,
        "metadata": {
            "name": node.metadata.name,
            "annotations": {asker.key: asker.word(order)},
            "ownerReferences": [owner],  # it goes with its node
        },
        "spec": _spec(asker.job, order, action),
    }


def _spec(job: str, order: NodeOrder, action: RemediationAction) -> Manifest:
    gpu = {"gpu": order.gpu} if order.gpu else {}
    return {
        "node": order.node,
        "action": action.value,
        "reason": order.reason[:REASON_LENGTH_MAX] or "it is faulty",
        "job": job,
        "incident": order.incident or "",
        **gpu,
    }
