"""What a Return comes to where another job took the node out of service: only that job returns it.

Of a job that is gone, a job of its namespace may return the node: it is the same people's evidence. Anybody else
is told what to do. Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.api.cordon import CORDON_TAINT, CORDONED_BY, CordonedBy, read_cordoned_by
from holdfast.api.intervention import (
    InterventionAction,
    InterventionOutcome,
    InterventionRequest,
    InterventionState,
)
from holdfast.operator.objects import Node


@dataclass(frozen=True, slots=True)
class Returning:
    """What to answer, once the node is put back for the job `of` that took it out of service; None: leave it."""

    outcome: InterventionOutcome
    of: str | None = None


def settle(
    request: InterventionRequest,
    outcome: InterventionOutcome,
    node: Node | None,
    is_there: Callable[[str], bool],
) -> Returning:
    """The watchdog's outcome in the light of what is written on the node. `is_there` tells of a job."""
    by = read_cordoned_by(node.metadata.annotations.get(CORDONED_BY)) if node is not None else None
    pending = outcome.state is InterventionState.PENDING
    if node is None or by is None or pending or request.action is not InterventionAction.RETURN:
        return Returning(outcome)
    mine, done = by.job == request.job, outcome.state is InterventionState.DONE
    if mine and done:
        return Returning(outcome)  # as the plan says
    # One that was deleted and applied again, or whose watchdog forgot, knows nothing of what it did before.
    if mine or (_namespace(by.job) == _namespace(request.job) and not is_there(by.job)):
        says = f"node {node.metadata.name} is back in service; {_took_it_out(by)} and is gone"
        said = f"{outcome.outcome}; {says}" if done else says
        return Returning(InterventionOutcome(outcome.id, InterventionState.DONE, said), by.job)
    says = (
        f"{outcome.outcome}; it stays out of service: {_took_it_out(by)}; {way_back(node.metadata.name, by.job)}"
    )
    return Returning(InterventionOutcome(outcome.id, outcome.state, says))


def way_back(node: str, job: str) -> str:
    """How a node is returned that a job took out of service, whether the job is there or gone."""
    namespace, _, name = job.partition("/")
    by_hand = f"kubectl taint node {node} {CORDON_TAINT}-; kubectl annotate node {node} {CORDONED_BY}-"
    return f"return it there: kubectl holdfast return {node} -n {namespace} --job {name}; if it is gone: {by_hand}"


def _took_it_out(by: CordonedBy) -> str:
    incident = f" ({by.incident})" if by.incident else ""
    return f"the job {by.job} took it out{incident}"


def _namespace(job: str) -> str:
    return job.partition("/")[0]
