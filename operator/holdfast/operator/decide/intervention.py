"""An Intervention as the operator handles it: read, sent to the watchdog once, its answer written down. Pure."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from holdfast.api.cordon import CORDON_TAINT, CORDONED_BY, read_cordoned_by
from holdfast.api.errors import InvalidSpec, Problem
from holdfast.api.intervention import (
    InterventionAction,
    InterventionOutcome,
    InterventionRequest,
    InterventionState,
)
from holdfast.api.interventionspec import InterventionStatus, read_intervention, request_of
from holdfast.api.metadata import API_VERSION
from holdfast.api.status import JobPhase
from holdfast.operator.kube.objects import Intervention, Job, Node, text_of

ERROR_LENGTH_MAX: Final = 500
NUMBER: Final = re.compile(r"[0-9]+")
FINAL = (InterventionState.DONE, InterventionState.REFUSED)


def is_answered(asked: Intervention) -> bool:
    """Whether it has its final answer: it is done once, and never looked at again."""
    return asked.recorded().state in FINAL


def attend(asked: Intervention) -> InterventionRequest | tuple[Problem, ...]:
    """The request to send, or every problem with it. The object's uid makes a repeated request the same one."""
    metadata = asked.metadata
    try:
        spec = msgspec.json.decode(asked.spec)
    except msgspec.DecodeError as error:
        return (Problem("spec", "what is there", f"write a mapping of names to values ({error})"),)
    if isinstance(spec, dict) and isinstance(job := spec.get("job"), str) and "/" in job:
        fix = f"name a job of the namespace {metadata.namespace}, and nothing but its name"
        return (Problem("spec.job", job, fix),)
    named = {"name": metadata.name, "namespace": metadata.namespace}
    document = {"apiVersion": API_VERSION, "kind": "Intervention", "metadata": named, "spec": spec}
    try:
        return request_of(read_intervention(document), metadata.uid)
    except InvalidSpec as error:
        return error.problems


def refusal_of(asked: Intervention, problems: tuple[Problem, ...]) -> InterventionOutcome:
    """The answer to a request that cannot be sent."""
    says = "; ".join(str(problem) for problem in problems)
    return InterventionOutcome(asked.metadata.uid, InterventionState.REFUSED, says)


def invalid(asked: Intervention, job: Job) -> InterventionOutcome | None:
    """The answer where the newest spec of a job that never ran is refused: nobody has to be asked.

    None where it is not, or was not looked at yet.
    """
    recorded = job.recorded()
    if recorded.phase is not JobPhase.INVALID or recorded.observed_generation != job.metadata.generation:
        return None
    condition = recorded.condition("InvalidSpec")
    why = f": {condition.message}" if condition is not None and condition.message else ""
    says = f"the job is Invalid{why}; correct the spec and apply it again"
    return InterventionOutcome(asked.metadata.uid, InterventionState.REFUSED, says)


def waiting(asked: Intervention, error: str) -> InterventionOutcome:
    """What it waits for while no watchdog answers.

    It is tried every few seconds, and the next try may meet another of several watchdogs: what differs in
    numbers alone, as addresses do, is not written anew.
    """
    says = f"waiting for the watchdog: {error[:ERROR_LENGTH_MAX]}; retrying"
    written = asked.recorded().outcome or ""
    same = NUMBER.sub("0", written) == NUMBER.sub("0", says)
    return InterventionOutcome(asked.metadata.uid, InterventionState.PENDING, written if same else says)


def answer(asked: Intervention, outcome: InterventionOutcome, now: float) -> Mapping[str, Any] | None:
    """The whole status to write, None when it says so already. `now` in wall seconds."""
    before = asked.recorded()
    if before.state in FINAL or (before.state, before.outcome) == (outcome.state, outcome.outcome):
        return None
    started_at = before.started_at or text_of(now)
    finished_at = text_of(now) if outcome.state in FINAL else None
    return InterventionStatus(outcome.state, outcome.outcome, started_at, finished_at).encode()


# What a Return comes to where another job took the node out of service: only that job returns it. Of a job that is
# gone, a job of its namespace may return the node: it is the same people's evidence. Others are told what to do.


@dataclass(frozen=True, slots=True)
class Returning:
    """What to answer, once the node is put back for the job `of` that took it out of service; None: leave it."""

    outcome: InterventionOutcome
    of: str | None = None


def settle_return(
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
    took_it_out = f"the job {by.job} took it out" + (f" ({by.incident})" if by.incident else "")
    if mine and done:
        return Returning(outcome)  # as the plan says
    # One that was deleted and applied again, or whose watchdog forgot, knows nothing of what it did before.
    if mine or (by.job.partition("/")[0] == request.job.partition("/")[0] and not is_there(by.job)):
        says = f"node {node.metadata.name} is back in service; {took_it_out} and is gone"
        said = f"{outcome.outcome}; {says}" if done else says
        return Returning(InterventionOutcome(outcome.id, InterventionState.DONE, said), by.job)
    namespace, _, name = by.job.partition("/")
    here = node.metadata.name
    by_hand = f"kubectl taint node {here} {CORDON_TAINT}-; kubectl annotate node {here} {CORDONED_BY}-"
    back = f"return it there: kubectl holdfast return {here} -n {namespace} --job {name}; if it is gone: {by_hand}"
    says = f"{outcome.outcome}; it stays out of service: {took_it_out}; {back}"
    return Returning(InterventionOutcome(outcome.id, outcome.state, says))
