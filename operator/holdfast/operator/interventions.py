"""Passes what on-call engineers ask for to the watchdog, and writes its answer on the object.

An Intervention stays as a record when its job is gone: it has no owner. Nothing is done twice, because the
object's uid is the request's id and the watchdog remembers those.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, NoReturn

import msgspec

from holdfast.api.errors import Fenced, HoldfastError, InvalidInput, Problem, Unavailable
from holdfast.api.intervention import (
    InterventionAction,
    InterventionOutcome,
    InterventionRequest,
    InterventionState,
)
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.clusterview import ClusterView
from holdfast.operator.edition import difference, is_earlier
from holdfast.operator.faultpoint import Point, reach
from holdfast.operator.intervention import answer, attend, is_answered, refusal_of
from holdfast.operator.jobspec import read_spec
from holdfast.operator.marks import ROLL_TO
from holdfast.operator.mergepatch import merge_patch
from holdfast.operator.namespacequeue import NamespaceQueue
from holdfast.operator.nodepatch import uncordoned
from holdfast.operator.nodewriting import patch_node
from holdfast.operator.objects import Asked, Job
from holdfast.operator.observed import Cordoning
from holdfast.operator.podbuilder import edition_of
from holdfast.operator.podstate import has_ended
from holdfast.operator.recorded import refused_because
from holdfast.operator.refusal import Absent
from holdfast.operator.resource import INTERVENTIONS, JOBS
from holdfast.operator.returning import settle
from holdfast.operator.timestamp import seconds_of
from holdfast.operator.watchdog import Watchdog
from holdfast.operator.worklist import Worklist
from holdfast.operator.writes import Writes

logger = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 8
PENDING_S: Final = 2.0  # how soon a pending one is asked about again
GIVE_UP_S: Final = 600.0
"""How long a watchdog is asked that is away or has not taken the job. What could not be done by
then would come as a surprise later."""
UNSEEN_S: Final = 10.0
"""How long a job that is not there is waited for: one applied together with it is seen by another watch."""


class Interventions:
    """Use `run` while leading. `now` is wall seconds."""

    def __init__(
        self,
        view: ClusterView,
        worklist: Worklist,
        writes: Writes,
        watchdog: Watchdog,
        now: Callable[[], float],
        *,
        cordoning: Cordoning,
    ) -> None:
        self._view = view
        self._worklist = worklist
        self._writes = writes
        self._watchdog = watchdog
        self._now = now
        self._cordoning = cordoning

    async def run(self) -> NoReturn:
        """Until cancelled, several at once, but of each namespace one. Raises Fenced."""
        queue = NamespaceQueue()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE_MAX):
                    group.create_task(self._serve(queue))
                while True:
                    queue.put(await self._worklist.take())
        except* Fenced as fenced:
            raise fenced.exceptions[0] from None

    async def _serve(self, queue: NamespaceQueue) -> NoReturn:
        while True:
            with queue.hand(await queue.turn()) as key:
                await self._pass_on(key)

    async def _pass_on(self, key: str) -> None:
        try:
            again_s = await self._attend(key)
        except Fenced:
            raise
        except HoldfastError as error:
            logger.warning("cannot pass on an intervention intervention=%s error=%s", key, error)
            self._worklist.failed(key)
        except Exception:  # one object's surprise must not stop the others
            logger.exception("cannot pass on an intervention intervention=%s", key)
            self._worklist.failed(key)
        else:
            self._put_down(key, again_s)

    def _put_down(self, key: str, again_s: float | None) -> None:
        if again_s is None:
            self._worklist.drop(key)
        else:
            self._worklist.done(key, again_s)

    async def _attend(self, key: str) -> float | None:
        """When to look again, None: never."""
        namespace, _, name = key.partition("/")
        asked = self._view.interventions.get(namespace, name)
        if asked is None or is_answered(asked):
            return None
        request = attend(asked)
        if isinstance(request, tuple):
            outcome = refusal_of(asked, request)
        else:
            reach(Point.BEFORE_INTERVENTION)
            outcome = await self._outcome(asked, request)
        if (status := answer(asked, outcome, self._now())) is not None:
            await self._write(asked, dict(status))
            reach(Point.AFTER_INTERVENTION)
        return PENDING_S if outcome.state is InterventionState.PENDING else None

    async def _outcome(self, asked: Asked, request: InterventionRequest) -> InterventionOutcome:
        try:
            outcome = await self._watchdog.intervene(request)
        except InvalidInput as error:
            return refusal_of(asked, error.problems)
        except Unavailable as error:
            if self._age_s(asked) < GIVE_UP_S:
                raise
            says = (
                f"the watchdog gave no answer for {GIVE_UP_S / 60:.0f} minutes, so it is not asked any more. "
                f"It may have done it: look at the job. ({error})"
            )
            return InterventionOutcome(request.id, InterventionState.REFUSED, says)
        if outcome is not None:
            return await self._settled(request, outcome)
        if (job := self._view.job(request.job)) is not None:
            return self._not_taken(asked, request, job)
        if self._age_s(asked) < UNSEEN_S:
            says = f"no job {request.job.partition('/')[2]} has been seen yet"
            return InterventionOutcome(request.id, InterventionState.PENDING, says)
        there = sorted(each.metadata.name for each in self._view.jobs_in(asked.metadata.namespace))
        fix = f"name a job of the namespace {asked.metadata.namespace}; there are: {', '.join(there) or 'none'}"
        return refusal_of(asked, (Problem("spec.job", request.job.partition("/")[2], fix),))

    def _not_taken(self, asked: Asked, request: InterventionRequest, job: Job) -> InterventionOutcome:
        """The answer for a job that is there and of which the watchdog knows nothing."""
        name = job.metadata.name
        if (why := refused_because(job)) is not None:
            says = f"the spec of job {name} is refused, so that nothing runs: {why}. Mend it, then ask again."
            return InterventionOutcome(request.id, InterventionState.REFUSED, says)
        if self._age_s(asked) < GIVE_UP_S:
            says = "the watchdog has not taken the job yet"
            return InterventionOutcome(request.id, InterventionState.PENDING, says)
        says = (
            f"the watchdog did not take job {name} for {GIVE_UP_S / 60:.0f} minutes, so it is not asked any more. "
            f"Nothing was done. Look at: kubectl describe tj {name}. Ask again once it is taken."
        )
        return InterventionOutcome(request.id, InterventionState.REFUSED, says)

    async def _settled(self, request: InterventionRequest, outcome: InterventionOutcome) -> InterventionOutcome:
        """The same, or more of it: what the watchdog does not know of nodes and pods."""
        if request.action is InterventionAction.RESTART and outcome.state is InterventionState.DONE:
            return await self._rolled(request, outcome)
        if self._cordoning is Cordoning.CONSUME or request.node is None:
            return outcome
        node = self._view.nodes_by_name.get(request.node)
        returning = settle(request, outcome, node, lambda job: self._view.job(job) is not None)
        if (of := returning.of) is not None:
            await patch_node(self._view, self._writes, request.node, lambda whole: uncordoned(whole, of))
            logger.info("returned node=%s of=%s asked_of=%s", request.node, of, request.job)
        return returning.outcome

    async def _rolled(self, request: InterventionRequest, outcome: InterventionOutcome) -> InterventionOutcome:
        """Pods of an earlier template are replaced with it; that this was asked for is written on the job."""
        job = self._view.job(request.job)
        spec = read_spec(job) if job is not None else None
        if job is None or not isinstance(spec, TrainingJob):
            return outcome
        edition, where = edition_of(spec), (job.metadata.namespace, job.metadata.name)
        pods = [pod for pod in self._view.pods_of(job) if not has_ended(pod) and is_earlier(pod, edition)]
        if not pods:
            return outcome
        patch = {"metadata": {"uid": job.metadata.uid, "annotations": {ROLL_TO: edition}}}
        with self._view.jobs.writing(*where) as flight:
            flight.landed(await self._writes.merge(JOBS, where, patch))
        says = f"{outcome.outcome}; {difference(pods, spec)}; they are being replaced"
        return InterventionOutcome(outcome.id, outcome.state, says)

    async def _write(self, asked: Asked, status: dict[str, Any]) -> None:
        where = (asked.metadata.namespace, asked.metadata.name)
        held = msgspec.json.decode(asked.status)
        patch = {
            "metadata": {"uid": asked.metadata.uid, "resourceVersion": asked.metadata.resource_version},
            "status": merge_patch(held, status),
        }
        with self._view.interventions.writing(*where) as flight:
            try:
                flight.landed(await self._writes.merge(INTERVENTIONS, where, patch, "status"))
            except Absent:
                return
        logger.info("answered intervention=%s/%s state=%s outcome=%s", *where, status["state"], status["outcome"])

    def _age_s(self, asked: Asked) -> float:
        created = seconds_of(asked.metadata.creation_timestamp)
        return 0.0 if created is None else self._now() - created
