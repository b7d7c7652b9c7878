"""Passes what on-call engineers ask for to the watchdog, and writes its answer on the object.

An Intervention stays as a record when its job is gone: it has no owner. Nothing is done twice, because the
object's uid is the request's id and the watchdog remembers those.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

import msgspec

from holdfast.api.errors import Fenced, HoldfastError, InvalidInput, Problem, Unavailable
from holdfast.api.intervention import (
    InterventionAction,
    InterventionOutcome,
    InterventionRequest,
    InterventionState,
)
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.act.cordon import patch_node, uncordoned
from holdfast.operator.act.faultpoint import reach
from holdfast.operator.act.gpucounts import GpuCounts
from holdfast.operator.act.handover import write_health
from holdfast.operator.decide.intervention import (
    answer,
    attend,
    invalid,
    is_answered,
    refusal_of,
    settle_return,
    waiting,
)
from holdfast.operator.decide.nodehealth import returned_health
from holdfast.operator.decide.observed import Cordoning, HandOn, read_spec
from holdfast.operator.decide.podbuilder import difference, edition_of, is_earlier
from holdfast.operator.decide.pods import has_ended
from holdfast.operator.kube.clusterview import ClusterView
from holdfast.operator.kube.objects import INTERVENTIONS, JOBS, ROLL_TO, Intervention, seconds_of, text_of
from holdfast.operator.kube.worklist import NamespaceQueue, Worklist
from holdfast.operator.kube.writes import Writes, merge_patch
from holdfast.operator.watchdog import Watchdog
from holdfast.wire.kube.reply import Absent

logger = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 8
PENDING_S: Final = 2.0  # how soon a pending one is asked about again, also of a watchdog that was away
GIVE_UP_S: Final = 600.0
"""How long a watchdog is asked that is away or has not taken the job. What could not be done by
then would come as a surprise later."""
UNSEEN_S: Final = 10.0
"""How long a job that is not there is waited for: one applied together with it is seen by another watch."""


@dataclass(frozen=True)
class Interventions:
    """Use `run` while leading. `now` is wall seconds."""

    view: ClusterView
    worklist: Worklist
    writes: Writes
    watchdog: Watchdog
    now: Callable[[], float]
    cordoning: Cordoning
    hand_on: HandOn = HandOn.NOTHING

    async def run(self) -> NoReturn:
        """Until cancelled, several at once, but of each namespace one. Raises Fenced."""
        queue = NamespaceQueue()

        async def serve() -> NoReturn:
            while True:
                with queue.hand(await queue.turn()) as key:
                    await self._pass_on(key)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE_MAX):
                    group.create_task(serve())
                while True:
                    queue.put(await self.worklist.take())
        except* Fenced as fenced:
            raise fenced.exceptions[0] from None

    async def _pass_on(self, key: str) -> None:
        try:
            again_s = await self._attend(key)
        except Fenced:
            raise
        except HoldfastError as error:
            logger.warning("cannot pass on an intervention intervention=%s error=%s", key, error)
            self.worklist.failed(key)
        except Exception:  # one object's surprise must not stop the others
            logger.exception("cannot pass on an intervention intervention=%s", key)
            self.worklist.failed(key)
        else:
            if again_s is None:
                self.worklist.drop(key)
            else:
                self.worklist.done(key, again_s)

    async def _attend(self, key: str) -> float | None:
        """When to look again, None: never."""
        namespace, _, name = key.partition("/")
        asked = self.view.interventions.get(namespace, name)
        if asked is None or is_answered(asked):
            return None
        request = attend(asked)
        if isinstance(request, tuple):
            outcome = refusal_of(asked, request)
        else:
            reach("before-intervention")
            outcome = await self._outcome(asked, request)
        status = answer(asked, outcome, self.now())
        if status is not None:
            patch = {
                "metadata": {"uid": asked.metadata.uid, "resourceVersion": asked.metadata.resource_version},
                "status": merge_patch(msgspec.json.decode(asked.status), status),
            }
            with self.view.interventions.writing(namespace, name) as flight, contextlib.suppress(Absent):
                flight.landed(await self.writes.merge(INTERVENTIONS, (namespace, name), patch, "status"))
                says = "answered intervention=%s state=%s outcome=%s"
                logger.info(says, key, status["state"], status["outcome"])
            reach("after-intervention")
        return PENDING_S if outcome.state is InterventionState.PENDING else None

    async def _outcome(self, asked: Intervention, request: InterventionRequest) -> InterventionOutcome:
        created = seconds_of(asked.metadata.creation_timestamp)
        age_s = 0.0 if created is None else self.now() - created
        # Before the watchdog is asked, which knows nothing of such a job and may be away.
        if (job := self.view.job(request.job)) is not None and (refused := invalid(asked, job)):
            return refused
        try:
            outcome = await self.watchdog.intervene(request)
        except InvalidInput as error:
            return refusal_of(asked, error.problems)
        except Unavailable as error:
            if age_s < GIVE_UP_S:
                return waiting(asked, str(error))
            says = (
                f"the watchdog gave no answer for {GIVE_UP_S / 60:.0f} minutes, so it is not asked any more. "
                f"It may have done it: look at the job. ({error})"
            )
            return InterventionOutcome(request.id, InterventionState.REFUSED, says)
        if outcome is not None:
            return await self._completed(request, outcome)
        if (job := self.view.job(request.job)) is not None:
            name = job.metadata.name
            if age_s < GIVE_UP_S:
                says = "the watchdog has not taken the job yet"
                return InterventionOutcome(request.id, InterventionState.PENDING, says)
            says = (
                f"the watchdog did not take job {name} for {GIVE_UP_S / 60:.0f} minutes, so it is not asked any "
                f"more. Nothing was done. Look at: kubectl describe tj {name}. Ask again once it is taken."
            )
            return InterventionOutcome(request.id, InterventionState.REFUSED, says)
        if age_s < UNSEEN_S:
            says = f"no job {request.job.partition('/')[2]} has been seen yet"
            return InterventionOutcome(request.id, InterventionState.PENDING, says)
        there = sorted(each.metadata.name for each in self.view.jobs_in(asked.metadata.namespace))
        fix = f"name a job of the namespace {asked.metadata.namespace}; there are: {', '.join(there) or 'none'}"
        return refusal_of(asked, (Problem("spec.job", request.job.partition("/")[2], fix),))

    async def _completed(self, request: InterventionRequest, outcome: InterventionOutcome) -> InterventionOutcome:
        """The same, or more of it: what the watchdog does not know of nodes and pods."""
        if request.action is InterventionAction.RESTART and outcome.state is InterventionState.DONE:
            return await self._rolled(request, outcome)
        if self.cordoning is Cordoning.CONSUME or request.node is None:
            return outcome
        node = self.view.nodes_by_name.get(request.node)
        returning = settle_return(request, outcome, node, lambda job: self.view.job(job) is not None)
        if (of := returning.of) is not None:
            await patch_node(self.view, self.writes, request.node, lambda whole: uncordoned(whole, of))
            logger.info("returned node=%s of=%s asked_of=%s", request.node, of, request.job)
            health = None if node is None else returned_health(of, node, self.now())
            if health is not None and self.hand_on is not HandOn.NOTHING:
                await write_health(self.view, self.writes, health, text_of(self.now()))
        return returning.outcome

    async def _rolled(self, request: InterventionRequest, outcome: InterventionOutcome) -> InterventionOutcome:
        """Pods of an earlier template are replaced with it; that this was asked for is written on the job.

        By the template of this moment: who changes it and asks at once may be ahead of the watch of jobs.
        """
        if (known := self.view.job(request.job)) is None:
            return outcome
        where = (known.metadata.namespace, known.metadata.name)
        try:
            job = await self.writes.fetch(JOBS, where)
        except Absent:
            return outcome
        spec = read_spec(job, await GpuCounts(self.writes, self.now).of(job))
        if not isinstance(spec, TrainingJob):
            return outcome
        edition = edition_of(spec)
        pods = [pod for pod in self.view.pods_of(job) if not has_ended(pod) and is_earlier(pod, edition)]
        if not pods:
            return outcome
        patch = {"metadata": {"uid": job.metadata.uid, "annotations": {ROLL_TO: edition}}}
        with self.view.jobs.writing(*where) as flight:
            flight.landed(await self.writes.merge(JOBS, where, patch))
        says = f"{outcome.outcome}; {difference(pods, spec)}; they are being replaced"
        return InterventionOutcome(outcome.id, outcome.state, says)
