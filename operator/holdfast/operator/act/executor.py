"""Carries out what a reconcile decided, in its order: pods many at a time, everything else one by one."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, TypeVar

import msgspec

from holdfast.api.cordon import CordonedBy
from holdfast.api.errors import Fenced, HoldfastError, InvalidInput, Problem
from holdfast.api.nesting import read
from holdfast.operator.act.cordon import cordoned, patch_node, uncordoned
from holdfast.operator.act.faultpoint import around
from holdfast.operator.act.handover import carry_out, write_health
from holdfast.operator.act.statuswriter import EventRecorder
from holdfast.operator.decide.action import (
    Action,
    Apply,
    AskForRemediation,
    ChangeRemediation,
    ChangeWorkload,
    Cordon,
    CreatePod,
    Delete,
    DeleteJob,
    DeletePod,
    EndCheck,
    EndRemediation,
    Forget,
    Manifest,
    RecordLast,
    SetFinalizer,
    SetNodeHealth,
    StartCheck,
    Submit,
    Tell,
    Uncordon,
)
from holdfast.operator.decide.inqueue import WORKLOAD
from holdfast.operator.kube.cache import Cache, HasMetadata
from holdfast.operator.kube.clusterview import ClusterView, key_of, owner_uid
from holdfast.operator.kube.objects import (
    ACCOUNTS,
    BINDINGS,
    CHECKS,
    FINALIZER,
    JOBS,
    PODS,
    ROLES,
    Job,
    Owned,
    Pod,
    Resource,
)
from holdfast.operator.kube.writes import Writes
from holdfast.operator.watchdog import Watchdog
from holdfast.wire.kube.reply import Absent, Conflicting, Declined

logger = logging.getLogger(__name__)

PODS_IN_FLIGHT_MAX: Final = 64

T = TypeVar("T", bound=HasMetadata)
RIGHTS: Final = (BINDINGS, ROLES, ACCOUNTS)
"""By which a checking pod reads its job's journal."""

Fault = tuple[Action, HoldfastError]
Kept = tuple[Resource[Any], Cache[Any]]
"""A kind of objects: where they are, and where they are seen."""

# By the names of the fault points around each.
POINTS: Final[dict[type[Action], str]] = {
    CreatePod: "pod-created",
    DeletePod: "pod-deleted",
    StartCheck: "check",
    EndCheck: "check",
    Apply: "apply",
    Delete: "owned-deleted",
    Cordon: "cordon",
    Uncordon: "uncordon",
    SetNodeHealth: "node-health",
    AskForRemediation: "remediation",
    ChangeRemediation: "remediation",
    ChangeWorkload: "workload",
    EndRemediation: "remediation",
    RecordLast: "last-event",
    DeleteJob: "job-deleted",
    Submit: "submit",
    Forget: "forget",
}


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""


def _holds_up(fault: Fault) -> bool:
    """Whether the job has to wait until that is done. What others or people are to be told is no part of it:
    without the right to tell them, it would wait for ever.
    """
    action, error = fault
    told = isinstance(action, SetNodeHealth | AskForRemediation | ChangeRemediation | EndRemediation | RecordLast)
    return not told or isinstance(error, Conflicting) or not isinstance(error, Declined)


@dataclass(frozen=True)
class Executor:
    """`owned` are the kinds of what belongs to a job, beside its pods.

    `wall` is the time of day, for people to read; `done` is told the kind of every action that was carried out.
    Raises nothing but Fenced: what fails is handed back, and what does not depend on it goes on.
    """

    view: ClusterView
    writes: Writes
    watchdog: Watchdog
    recorder: EventRecorder
    owned: dict[str, Kept]
    done: Callable[[str], None]
    wall: Callable[[], str]

    async def apply(self, job: Job, actions: Sequence[Action]) -> list[Fault]:
        """Every action; the failures, in order. `Tell` is not for the cluster and passed over."""
        faults: list[Fault] = []
        wanted = (each for each in actions if not isinstance(each, Tell))
        for parallel, group in groupby(wanted, key=lambda each: isinstance(each, CreatePod | DeletePod)):
            if parallel:
                faults += await self._apply_pods(job, list(group))
                continue
            for action in group:
                # What ends the job ends what the actions before it still need; nor is an end told before it is.
                ends = isinstance(action, DeleteJob | RecordLast) or action == SetFinalizer(held=False)
                if ends and any(map(_holds_up, faults)):
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
        if isinstance(action, SetFinalizer):
            point = "finalizer" if action.held else "release"
        else:
            point = POINTS[type(action)]
        try:
            with around(point):
                await self._carry_out(job, action)
        except Fenced:
            raise
        except HoldfastError as error:
            return action, error
        except msgspec.MsgspecError as error:
            return action, HoldfastError(f"the answer cannot be read: {error}")
        self.done(type(action).__name__)
        return None

    async def _carry_out(self, job: Job, action: Action) -> None:
        key, view = key_of(job.metadata), self.view
        match action:
            case CreatePod(manifest=manifest):
                where = (job.metadata.namespace, manifest["metadata"]["name"])
                with view.pods.writing(*where) as flight:
                    try:
                        pod = await self.writes.create(PODS, where[0], manifest)
                    except Conflicting:
                        pod = msgspec.convert(await self.writes.read(PODS, where), Pod)
                        if owner_uid(pod.metadata) != job.metadata.uid:
                            raise
                    flight.landed(pod)
            case DeletePod(name=name, uid=uid, reason=reason, grace_s=grace_s):
                logger.info("deleting a pod job=%s pod=%s reason=%s", key, name, reason)
                await self._delete(job, (PODS, view.pods), name, uid, grace_s)
            case StartCheck():
                await self._start_check(job, action)
            case EndCheck(name=name, uid=uid):
                logger.info("deleting a checking pod job=%s pod=%s", key, name)
                await self._end_rights(job.metadata.namespace, name)
                await self._delete(job, (CHECKS, view.checks), name, uid)
            case Apply(manifest=manifest):
                await self._apply_owned(job, manifest)
            case Delete(kind=kind, name=name):
                seen = self.owned[kind][1].get(job.metadata.namespace, name)
                await self._delete(job, self.owned[kind], name, seen.metadata.uid if seen is not None else "")
            case Cordon(node=node, reason=reason, incident=incident):
                by = CordonedBy(key, reason, incident, self.wall())
                await patch_node(view, self.writes, node, lambda whole: cordoned(whole, by))
            case Uncordon(node=node, of=of):
                await patch_node(view, self.writes, node, lambda whole: uncordoned(whole, of or key))
            case SetNodeHealth():
                await write_health(view, self.writes, action, self.wall())
            case AskForRemediation() | ChangeRemediation() | EndRemediation():
                await carry_out(view, self.writes, action)
            case ChangeWorkload(name=name, uid=uid, version=version, status=status):
                about = {"uid": uid, "resourceVersion": version}
                await self._write_workload(job, name, {"metadata": about, "status": status})
            case RecordLast(event=event):
                await self.recorder.record(job, event, once=True)
            case SetFinalizer(held=held):
                await self._set_finalizer(job, held)
            case DeleteJob():
                await self._delete(job, (JOBS, view.jobs), job.metadata.name, job.metadata.uid)
            case Submit(policy=policy):
                await self.watchdog.submit(policy)
            case Forget():
                await self.watchdog.forget(key)

    async def _start_check(self, job: Job, action: StartCheck) -> None:
        """Of one whose pod is refused nothing is left."""
        namespace, name = job.metadata.namespace, action.pod["metadata"]["name"]
        rights = ((ACCOUNTS, action.account), (ROLES, action.role), (BINDINGS, action.binding))
        made: list[Resource[Any]] = []
        try:
            for resource, manifest in rights:
                await self._create(job, resource, manifest)
                made.insert(0, resource)
            with self.view.checks.writing(namespace, name) as flight:
                flight.landed(await self._create(job, CHECKS, action.pod))
        except (Declined, InvalidInput):
            await self._end_rights(namespace, name, made)
            raise

    async def _create(self, job: Job, resource: Resource[T], manifest: Manifest) -> T:
        """One of that name that is there already is the same one, unless it is somebody else's."""
        where = (job.metadata.namespace, manifest["metadata"]["name"])
        try:
            return await self.writes.create(resource, where[0], manifest)
        except Conflicting:
            there = await self.writes.fetch(resource, where)
            if owner_uid(there.metadata) != job.metadata.uid:
                fix = "one of that name is there that is not this job's: remove it"
                raise InvalidInput(Problem(resource.kind, "/".join(where), fix)) from None
            return there

    async def _end_rights(self, namespace: str, name: str, kinds: Sequence[Resource[Any]] = RIGHTS) -> None:
        """What a checking pod of that name was allowed by; it goes first, and the pod when it is gone."""
        for resource in kinds:
            with suppress(Absent):
                await self.writes.delete(resource, (namespace, name))

    async def _apply_owned(self, job: Job, manifest: Manifest) -> None:
        """One of that name that is somebody else's is never written."""
        resource, cache = self.owned[manifest["kind"]]
        where = (job.metadata.namespace, manifest["metadata"]["name"])
        with cache.writing(*where) as flight:
            try:
                there = msgspec.convert(await self.writes.read(resource, where), Owned)
            except Absent:
                flight.landed(await self.writes.create(resource, where[0], manifest))
                return
            if owner_uid(there.metadata) != job.metadata.uid:
                fix = "one of that name is there that is not this job's: remove it, or give the job another name"
                raise InvalidInput(Problem(manifest["kind"], "/".join(where), fix))
            # The uid makes it fail, should another have taken its place this moment.
            same = {**manifest, "metadata": {**manifest["metadata"], "uid": there.metadata.uid}}
            flight.landed(await self.writes.apply(resource, where, same))

    async def _write_workload(self, job: Job, name: str, patch: Manifest) -> None:
        """The status of what stands for the job in a queue. One that is gone needs none."""
        resource, cache = self.owned[WORKLOAD]
        where = (job.metadata.namespace, name)
        with cache.writing(*where) as flight, suppress(Absent):
            flight.landed(await self.writes.merge(resource, where, patch, "status"))

    async def _set_finalizer(self, job: Job, held: bool) -> None:
        others = [each for each in job.metadata.finalizers if each != FINALIZER]
        patch = {
            "metadata": {
                "uid": job.metadata.uid,
                "resourceVersion": job.metadata.resource_version,
                "finalizers": [*others, FINALIZER] if held else others,
            }
        }
        where = (job.metadata.namespace, job.metadata.name)
        with self.view.jobs.writing(*where) as flight:
            try:
                written = await self.writes.merge(JOBS, where, patch)
            except Absent:
                return
            # Without its last finalizer a deleted object is gone at once, though the answer still shows it.
            if written.metadata.deletion_timestamp and not written.metadata.finalizers:
                flight.deleted(written.metadata.uid)
            else:
                flight.landed(written)

    async def _delete(self, job: Job, kept: Kept, name: str, uid: str, grace_s: int | None = None) -> None:
        """Gone already, or another of that name: there is nothing to do."""
        resource, cache = kept
        where = (job.metadata.namespace, name)
        with cache.writing(*where) as flight:
            try:
                content = await self.writes.delete(resource, where, uid=uid, grace_s=grace_s)
            except (Absent, Conflicting):
                return
            if read(content, _Kind).kind == "Status":
                flight.deleted(uid)
                return
            # What is answered is still there as long as it has time left, or a finalizer holds it.
            left = read(content, resource.shape)
            about = left.metadata
            held = bool(about.finalizers) or about.deletion_grace_period_seconds != 0
            if about.deletion_timestamp is not None and held:
                flight.landed(left)
            else:
                flight.deleted(uid)
