"""What people ask of one job over HTTP, and what it answers: the same id gets the same answer, however late."""

import asyncio
from collections.abc import Callable

from holdfast.api.errors import Unavailable
from holdfast.api.event import InterventionRequested
from holdfast.api.intervention import InterventionOutcome, InterventionRequest, InterventionState
from holdfast.watchdog.brain.requests import pending
from holdfast.watchdog.brain.step import Answered
from holdfast.watchdog.job import Job

ANSWER_PATIENCE_S = 2.0
KEPT_OUTCOMES = 256
LINES_PER_BREATH = 64


class Interventions:
    """The questions and answers of one job. `demand` tells the job of a question; it raises as JobHost.demand."""

    def __init__(self, job: Job, demand: Callable[[InterventionRequested], None]) -> None:
        self._job = job
        self._demand = demand
        self._outcomes: dict[str, InterventionOutcome] = {}
        self._waiting: dict[str, asyncio.Future[InterventionOutcome]] = {}

    async def ask(self, request: InterventionRequest) -> InterventionOutcome:
        """Ask the brain and wait shortly for the answer; PENDING where it takes longer.

        Raises Unavailable, Damaged, Fenced.
        """
        known = self._outcomes.get(request.id) or self._job.answer(request.id)
        if known is not None:
            return known
        if request.id in self._job.state.answered:
            return await self._journaled(request.id)
        answer = self._waiting.setdefault(request.id, asyncio.get_running_loop().create_future())
        if pending(self._job.state, request.id) is None:
            self._demand(InterventionRequested(request))
        try:
            async with asyncio.timeout(ANSWER_PATIENCE_S):
                return await asyncio.shield(answer)
        except TimeoutError:
            says = pending(self._job.state, request.id) or "taken, not yet answered; ask again with the same id"
            return InterventionOutcome(request.id, InterventionState.PENDING, says)

    def answered(self, outcome: InterventionOutcome) -> None:
        """The brain has answered."""
        self._outcomes[outcome.id] = outcome
        while len(self._outcomes) > KEPT_OUTCOMES:
            del self._outcomes[next(iter(self._outcomes))]
        waiting = self._waiting.pop(outcome.id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(outcome)

    async def _journaled(self, request_id: str) -> InterventionOutcome:
        """Answered by a version that kept no answers: the journal tells."""
        for count, each in enumerate(self._job.history()):
            for effect in each.effects:
                if isinstance(effect, Answered) and effect.outcome.id == request_id:
                    self.answered(effect.outcome)
                    return effect.outcome
            if count % LINES_PER_BREATH == 0:
                await asyncio.sleep(0)  # a long journal must not keep a fault waiting
        raise Unavailable(f"the answer to intervention {request_id} is not in the journal")
