"""Asks the API server whether it would take a pod of a job's template, before any is made.

It is asked to be strict: a field that no pod has is refused by its name. What it answers of one that it takes is
compared with what was asked: admission may have changed it.
Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#field-validation
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from holdfast.api.errors import Fenced, HoldfastError, InvalidSpec
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.decide.alterations import alterations
from holdfast.operator.decide.observed import UNTRIED, Mode, Options, Trial
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
    """What came of it for one generation of a job, at which time (monotonic seconds)."""

    uid: str
    generation: int
    trial: Trial
    at: float


class DryRun:
    """What was said of each job's template, asked for once per generation. `clock` is monotonic seconds."""

    def __init__(self, writes: Writes, options: Options, clock: Callable[[], float]) -> None:
        self._writes = writes
        self._options = options
        self._clock = clock
        self._tried: dict[str, Tried] = {}

    async def trial(self, job: TrainingJob) -> Trial:
        """What the API server says of a pod of it; nothing when it could not be asked yet.

        An operator that observes does not ask: who asks must be allowed to create pods. Raises Fenced.
        """
        if self._options.mode is Mode.OBSERVE:
            return UNTRIED
        uid, generation = job.metadata.uid or "", job.metadata.generation or 0
        held = self._tried.get(job.id)
        if held is not None and (held.uid, held.generation) != (uid, generation):
            held = None  # of an earlier template
        if held is not None and (held.trial.refused is None or self._clock() - held.at < ASK_AGAIN_S):
            return held.trial
        try:
            trial = await self._try(job)
        except Fenced:
            raise
        except HoldfastError:
            return held.trial if held is not None else UNTRIED
        self._tried[job.id] = Tried(uid, generation, trial, self._clock())
        return trial

    def forget(self, key: str) -> None:
        """The job is gone."""
        self._tried.pop(key, None)

    async def _try(self, job: TrainingJob) -> Trial:
        try:
            pod = blueprint(job, self._options).pod(0)
        except InvalidSpec:
            return UNTRIED  # said by who reads the spec
        asked = pod | {"metadata": pod["metadata"] | {"name": f"{job.metadata.name}-trial"}}
        try:
            taken = await self._writes.try_create(PODS, job.metadata.namespace, asked)
        except Declined as declined:
            says = declined.message
            if declined.code not in _ABOUT_THE_POD or any(it in says for it in _ABOUT_SOMETHING_ELSE):
                return UNTRIED
            unknown = _UNKNOWN_FIELD.findall(says) if "strict decoding" in says else []
            if unknown:
                says = f"there is no field {', '.join(unknown)}; mend the spelling or remove it"
            return Trial(refused=says)
        return Trial(altered=alterations(asked, taken))
