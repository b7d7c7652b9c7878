"""An Intervention as the operator handles it: read, sent to the watchdog once, its answer written down."""

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.api.errors import InvalidSpec, Problem
from holdfast.api.intervention import InterventionOutcome, InterventionRequest, InterventionState
from holdfast.api.interventionspec import read_intervention, request_of
from holdfast.api.metadata import API_VERSION
from holdfast.operator.objects import Asked
from holdfast.operator.timestamp import text_of

FINAL = frozenset((InterventionState.DONE.value, InterventionState.REFUSED.value))


class Answered(msgspec.Struct, frozen=True, rename="camel"):
    """The status of an Intervention as it was written."""

    state: str | None = None
    outcome: str | None = None
    started_at: str | None = None
    finished_at: str | None = None


def is_answered(asked: Asked) -> bool:
    """Whether it has its final answer: it is done once, and never looked at again."""
    return _read(asked).state in FINAL


def attend(asked: Asked) -> InterventionRequest | tuple[Problem, ...]:
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


def refusal_of(asked: Asked, problems: tuple[Problem, ...]) -> InterventionOutcome:
    """The answer to a request that cannot be sent."""
    says = "; ".join(str(problem) for problem in problems)
    return InterventionOutcome(asked.metadata.uid, InterventionState.REFUSED, says)


def answer(asked: Asked, outcome: InterventionOutcome, now: float) -> Mapping[str, Any] | None:
    """The whole status to write, None when it says so already. `now` in wall seconds."""
    before = _read(asked)
    if before.state in FINAL or (before.state, before.outcome) == (outcome.state.value, outcome.outcome):
        return None
    final = outcome.state.value in FINAL
    return {
        "state": outcome.state.value,
        "outcome": outcome.outcome,
        "startedAt": before.started_at or text_of(now),
        **({"finishedAt": text_of(now)} if final else {}),
    }


def _read(asked: Asked) -> Answered:
    try:
        return msgspec.json.decode(asked.status, type=Answered)
    except msgspec.MsgspecError:
        return Answered()
