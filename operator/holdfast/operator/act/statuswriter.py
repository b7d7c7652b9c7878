"""Writes what people read of an object: its status, and events about it."""

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from holdfast.api.metadata import API_VERSION
from holdfast.operator.act.faultpoint import around
from holdfast.operator.decide.action import KubeEvent
from holdfast.operator.kube.clusterview import ClusterView
from holdfast.operator.kube.objects import JOBS, Job, Metadata, Object, Resource
from holdfast.operator.kube.writes import FIELD_MANAGER, Writes, merge_patch
from holdfast.wire.kube.reply import Absent, Conflicting

MESSAGE_LENGTH_MAX: Final = 1024  # the API server refuses longer ones


class Counted(Object, frozen=True, gc=False):
    """What is read of an Event."""

    metadata: Metadata
    count: int = 1


EVENTS = Resource("/api/v1", "events", "Event", Counted)


async def write_status(view: ClusterView, writes: Writes, job: Job, status: Mapping[str, Any]) -> None:
    """Make it the job's status, if it is not that already.

    Raises Conflicting when the job changed meanwhile: whoever decided on this status decided on an older job.
    """
    held = msgspec.json.decode(job.status) if bytes(job.status) else {}
    patch = merge_patch(held, status)
    if not patch:
        return
    version = {"uid": job.metadata.uid, "resourceVersion": job.metadata.resource_version}
    where = (job.metadata.namespace, job.metadata.name)
    with around("status"), view.jobs.writing(*where) as flight:
        flight.landed(await writes.merge(JOBS, where, {"metadata": version, "status": patch}, "status"))


class EventRecorder:
    """Records events of jobs. `wall` is the time of day in RFC 3339.

    An event's name follows from what it says, so the same again counts up the one that is there. Of one that can
    be told `once` in the job's life, it follows from its reason: whoever comes second leaves it as it is.
    """

    def __init__(self, writes: Writes, identity: str, wall: Callable[[], str]) -> None:
        self._writes = writes
        self._identity = identity
        self._wall = wall

    async def record(self, job: Job, event: KubeEvent, *, once: bool = False) -> None:
        """Raises as `Writes`."""
        about, now = job.metadata, self._wall()
        said = "\0".join((about.uid, event.reason, "" if once else event.message))
        digest = hashlib.sha256(said.encode()).hexdigest()[:16]
        where = (about.namespace, f"{about.name}.{digest}")
        manifest = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": where[1], "namespace": about.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": JOBS.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
            "reason": event.reason,
            "message": event.message[:MESSAGE_LENGTH_MAX],
            "type": "Warning" if event.warning else "Normal",
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": self._identity[:128],
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        with around("event"):
            try:
                await self._writes.create(EVENTS, where[0], manifest)
            except Conflicting:
                if once:
                    return
                # Two patches, because reading events is not among the operator's rights. It may expire this
                # moment, or somebody else counts: a count is not worth more.
                with contextlib.suppress(Absent, Conflicting):
                    held = await self._writes.merge(EVENTS, where, {"lastTimestamp": now})
                    version = {"resourceVersion": held.metadata.resource_version}
                    await self._writes.merge(EVENTS, where, {"metadata": version, "count": held.count + 1})
