"""Asks the API server whether it would take a pod of a job's template, before any is made.

A field that no pod has is named by servers since 1.27, which are asked to be strict. Older ones leave it out
without a word: what they answer is compared with what was asked.
Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#field-validation
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.errors import Fenced, HoldfastError, InvalidSpec
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.decide.observed import Mode, Options
from holdfast.operator.decide.podbuilder import blueprint
from holdfast.operator.kube.objects import PODS
from holdfast.operator.kube.writes import Writes
from holdfast.wire.kube.reply import Declined

ASK_AGAIN_S: Final = 30.0
"""A refusal may come from something beside the job, such as a missing service account, and be put right there."""

_ABOUT_THE_POD: Final = (400, 403, 422)
_ABOUT_SOMETHING_ELSE: Final = ("exceeded quota", "is being terminated", "does not support dry run", "dryRun")
_UNKNOWN_FIELD: Final = re.compile(r'unknown field "([^"]+)"')


@dataclass(frozen=True)
class Tried:
    """`refused` is the API server's word against it, None when it takes it; `at` is monotonic seconds."""

    uid: str
    generation: int
    refused: str | None
    at: float


class DryRun:
    """What was said of each job's template, asked for once per generation. `clock` is monotonic seconds."""

    def __init__(self, writes: Writes, options: Options, clock: Callable[[], float]) -> None:
        self._writes = writes
        self._options = options
        self._clock = clock
        self._tried: dict[str, Tried] = {}

    async def refused(self, job: TrainingJob) -> str | None:
        """What the API server says against a pod of it; None when it takes it, or could not be asked yet.

        An operator that observes does not ask: who asks must be allowed to create pods. Raises Fenced.
        """
        if self._options.mode is Mode.OBSERVE:
            return None
        uid, generation = job.metadata.uid or "", job.metadata.generation or 0
        held = self._tried.get(job.id)
        if held is not None and (held.uid, held.generation) != (uid, generation):
            held = None  # of an earlier template
        if held is not None and (held.refused is None or self._clock() - held.at < ASK_AGAIN_S):
            return held.refused
        try:
            refused = await self._try(job)
        except Fenced:
            raise
        except HoldfastError:
            return held.refused if held is not None else None
        self._tried[job.id] = Tried(uid, generation, refused, self._clock())
        return refused

    def forget(self, key: str) -> None:
        """The job is gone."""
        self._tried.pop(key, None)

    async def _try(self, job: TrainingJob) -> str | None:
        try:
            pod = blueprint(job, self._options).pod(0)
        except InvalidSpec:
            return None  # said by who reads the spec
        trial = pod | {"metadata": pod["metadata"] | {"name": f"{job.metadata.name}-trial"}}
        try:
            tried = await self._writes.try_create(PODS, job.metadata.namespace, trial)
        except Declined as declined:
            if declined.code not in _ABOUT_THE_POD or any(it in declined.message for it in _ABOUT_SOMETHING_ELSE):
                return None
            refused: str | None = declined.message
            unknown = _UNKNOWN_FIELD.findall(declined.message) if "strict decoding" in declined.message else []
        else:
            refused, unknown = None, list(dropped(trial["spec"], tried.get("spec"), "spec"))
        return f"there is no field {', '.join(unknown)}; mend the spelling or remove it" if unknown else refused


def dropped(given: Any, taken: Any, path: str) -> Iterator[str]:
    """The fields of `given` that the API server did not take, which it leaves out without a word.

    An empty value may be left out as well, and means nothing. What admission added is of no interest.
    """
    match given, taken:
        case dict(), dict():
            for key, value in given.items():
                if key in taken:
                    yield from dropped(value, taken[key], f"{path}.{key}")
                elif value:
                    yield f"{path}.{key}"
        case list(), list() if len(given) <= len(taken):
            # Admission adds entries (mounts, tolerations, sidecars) and leaves the others in their order. A field
            # that nothing of this kind has is in none of them, so the nearest one lacks just those fields.
            added = len(taken) - len(given)
            for place, one in enumerate(given):
                candidates = taken[place : place + added + 1]
                yield from min((list(dropped(one, each, f"{path}[{place}]")) for each in candidates), key=len)
