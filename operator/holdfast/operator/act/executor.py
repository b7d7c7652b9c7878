"""Carries out what a reconcile decided, in its order: pods many at a time, everything else one by one."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec

from holdfast.api.cordon import CordonedBy
from holdfast.api.errors import Fenced, HoldfastError, InvalidInput, Problem
from holdfast.api.nesting import read
from holdfast.operator.act.cordon import cordoned, patch_node, uncordoned
from holdfast.operator.act.faultpoint import Point, reach
from holdfast.operator.decide.action import (
    Action,
    Apply,
    Cordon,
    CreatePod,
    Delete,
    DeleteJob,
    DeletePod,
    Forget,
    Manifest,
    SetFinalizer,
    Submit,
    Tell,
    Uncordon,
)
from holdfast.operator.kube.cache import Cache, Key
from holdfast.operator.kube.clusterview import ClusterView, key_of, owner_uid
from holdfast.operator.kube.objects import FINALIZER, JOBS, PODS, SERVICES, Job, Metadata, Owned, Pod, Resource
from holdfast.operator.kube.writes import Writes
from holdfast.operator.watchdog import Watchdog
from holdfast.wire.kube.reply import Absent, Conflicting, Declined

logger = logging.getLogger(__name__)

PODS_IN_FLIGHT_MAX: Final = 64

Fault = tuple[Action, HoldfastError]
Deletable = tuple[Resource[Any], Cache[Any]]


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""


class Applier:
    """`wall` is the time of day, for people to read; `done` is told the kind of every action that was carried out.

    Raises nothing but Fenced: what fails is handed back, and what does not depend on it goes on.
    """

    def __init__(
        self,
        view: ClusterView,
        writes: Writes,
        watchdog: Watchdog,
        budgets: Resource[Owned],
        done: Callable[[str], None],
        wall: Callable[[], str],
    ) -> None:
        self._view = view
        self._writes = writes
        self._watchdog = watchdog
        self._owned = {"Service": SERVICES, "PodDisruptionBudget": budgets}
        self._done = done
        self._wall = wall

    async def apply(self, job: Job, actions: Sequence[Action]) -> list[Fault]:
        """Every action; the failures, in order. `Tell` is not for the cluster and passed over."""
        faults: list[Fault] = []
        wanted = (each for each in actions if not isinstance(each, Tell))
        for parallel, group in groupby(wanted, key=lambda each: isinstance(each, CreatePod | DeletePod)):
            if parallel:
                faults += await self._apply_pods(job, list(group))
                continue
            for action in group:
                if _waits_for_the_rest(action) and faults:
                    return faults
                if (fault := await self._attempt(job, action)) is not None:
                    faults.append(fault)
                    if isinstance(action, SetFinalizer) and action.held:
                        return faults  # nothing may exist that nobody would wind up
        return faults

    async def _apply_pods(self, job: Job, actions: Sequence[Action]) -> list[Fault]:
        """Many at a time. After a refusal no further one is begun: a quota says no to all of them."""
        faults: list[Fault] = []
        waiting = iter(actions)

        async def work() -> None:
            for action in waiting:
                if any(isinstance(error, Declined) for _, error in faults):
                    return
                if (fault := await self._attempt(job, action)) is not None:
                    faults.append(fault)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(PODS_IN_FLIGHT_MAX, len(actions))):
                group.create_task(work())
        return faults

    async def _attempt(self, job: Job, action: Action) -> Fault | None:
        try:
            await self._carry_out(job, action)
        except Fenced:
            raise
        except HoldfastError as error:
            return action, error
        except msgspec.MsgspecError as error:
            return action, HoldfastError(f"the answer cannot be read: {error}")
        self._done(type(action).__name__)
        return None

    async def _carry_out(self, job: Job, action: Action) -> None:
        match action:
            case CreatePod():
                await self._create_pod(job, action)
            case DeletePod():
                await self._delete_pod(job, action)
            case Apply():
                await self._apply_owned(job, action)
            case Delete():
                await self._delete_owned(job, action)
            case Cordon():
                await self._cordon(job, action)
            case Uncordon():
                reach(Point.BEFORE_UNCORDON)
                await patch_node(
                    self._view, self._writes, action.node, lambda node: uncordoned(node, key_of(job.metadata))
                )
                reach(Point.AFTER_UNCORDON)
            case SetFinalizer():
                await self._set_finalizer(job, action.held)
            case DeleteJob():
                await self._delete_job(job)
            case Submit():
                reach(Point.BEFORE_SUBMIT)
                await self._watchdog.submit(action.policy)
                reach(Point.AFTER_SUBMIT)
            case Forget():
                reach(Point.BEFORE_FORGET)
                await self._watchdog.forget(key_of(job.metadata))
                reach(Point.AFTER_FORGET)

    async def _create_pod(self, job: Job, action: CreatePod) -> None:
        namespace, name = job.metadata.namespace, action.manifest["metadata"]["name"]
        reach(Point.BEFORE_POD_CREATED)
        with self._view.pods.writing(namespace, name) as flight:
            try:
                pod = await self._writes.create(PODS, namespace, action.manifest)
            except Conflicting:
                pod = msgspec.convert(await self._writes.read(PODS, (namespace, name)), Pod)
                if owner_uid(pod.metadata) != job.metadata.uid:
                    raise
            flight.landed(pod)
        reach(Point.AFTER_POD_CREATED)

    async def _delete_pod(self, job: Job, action: DeletePod) -> None:
        reach(Point.BEFORE_POD_DELETED)
        logger.info("deleting a pod job=%s pod=%s reason=%s", key_of(job.metadata), action.name, action.reason)
        where = (job.metadata.namespace, action.name)
        await self._delete((PODS, self._view.pods), where, action.uid, action.grace_s)
        reach(Point.AFTER_POD_DELETED)

    async def _apply_owned(self, job: Job, action: Apply) -> None:
        kind, name = action.manifest["kind"], action.manifest["metadata"]["name"]
        cache = self._cache_of(kind)
        reach(Point.BEFORE_APPLY)
        where = (job.metadata.namespace, name)
        with cache.writing(*where) as flight:
            flight.landed(await self._applied(job, where, action.manifest))
        reach(Point.AFTER_APPLY)

    async def _applied(self, job: Job, where: Key, manifest: Manifest) -> Owned:
        """The object as it is then. One of that name that is somebody else's is never written."""
        resource = self._owned[manifest["kind"]]
        try:
            there = msgspec.convert(await self._writes.read(resource, where), Owned)
        except Absent:
            return await self._writes.create(resource, where[0], manifest)
        if owner_uid(there.metadata) != job.metadata.uid:
            fix = "one of that name is there that is not this job's: remove it, or give the job another name"
            raise InvalidInput(Problem(manifest["kind"], "/".join(where), fix))
        # The uid makes it fail, should another have taken its place this moment.
        same = {**manifest, "metadata": {**manifest["metadata"], "uid": there.metadata.uid}}
        return await self._writes.apply(resource, where, same)

    async def _delete_owned(self, job: Job, action: Delete) -> None:
        cache = self._cache_of(action.kind)
        held = cache.get(job.metadata.namespace, action.name)
        reach(Point.BEFORE_OWNED_DELETED)
        uid = held.metadata.uid if held is not None else ""
        await self._delete((self._owned[action.kind], cache), (job.metadata.namespace, action.name), uid)
        reach(Point.AFTER_OWNED_DELETED)

    async def _cordon(self, job: Job, action: Cordon) -> None:
        by = CordonedBy(key_of(job.metadata), action.reason, action.incident, self._wall())
        reach(Point.BEFORE_CORDON)
        await patch_node(self._view, self._writes, action.node, lambda node: cordoned(node, by))
        reach(Point.AFTER_CORDON)

    async def _set_finalizer(self, job: Job, held: bool) -> None:
        before, after = (
            (Point.BEFORE_FINALIZER, Point.AFTER_FINALIZER)
            if held
            else (Point.BEFORE_RELEASE, Point.AFTER_RELEASE)
        )
        others = [each for each in job.metadata.finalizers if each != FINALIZER]
        patch = {
            "metadata": {
                "uid": job.metadata.uid,
                "resourceVersion": job.metadata.resource_version,
                "finalizers": [*others, FINALIZER] if held else others,
            }
        }
        reach(before)
        where = (job.metadata.namespace, job.metadata.name)
        with self._view.jobs.writing(*where) as flight:
            try:
                written = await self._writes.merge(JOBS, where, patch)
            except Absent:
                return
            # Without its last finalizer a deleted object is gone at once, though the answer still shows it.
            if written.metadata.deletion_timestamp and not written.metadata.finalizers:
                flight.deleted(written.metadata.uid)
            else:
                flight.landed(written)
        reach(after)

    async def _delete_job(self, job: Job) -> None:
        reach(Point.BEFORE_JOB_DELETED)
        where = (job.metadata.namespace, job.metadata.name)
        await self._delete((JOBS, self._view.jobs), where, job.metadata.uid)
        reach(Point.AFTER_JOB_DELETED)

    async def _delete(self, what: Deletable, where: Key, uid: str, grace_s: int | None = None) -> None:
        """Gone already, or another of that name: there is nothing to do."""
        resource, cache = what
        with cache.writing(*where) as flight:
            try:
                content = await self._writes.delete(resource, where, uid=uid, grace_s=grace_s)
            except (Absent, Conflicting):
                return
            if _is_status(content):
                flight.deleted(uid)
                return
            left = read(content, resource.shape)
            if _goes_on(left.metadata):
                flight.landed(left)
            else:
                flight.deleted(uid)

    def _cache_of(self, kind: str) -> Cache[Owned]:
        return self._view.services if kind == "Service" else self._view.budgets


def _waits_for_the_rest(action: Action) -> bool:
    """Whether it ends what the actions before it still need."""
    return isinstance(action, DeleteJob) or (isinstance(action, SetFinalizer) and not action.held)


def _is_status(content: bytes) -> bool:
    return read(content, _Kind).kind == "Status"


def _goes_on(metadata: Metadata) -> bool:
    """Whether what a deletion answered with is still there: it has time left, or a finalizer holds it."""
    if metadata.deletion_timestamp is None:
        return False
    return bool(metadata.finalizers) or metadata.deletion_grace_period_seconds != 0
