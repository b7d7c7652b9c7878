"""Reads of the cluster what a job's claims hold, where its spec does not say how many workers a node runs.

Claims are immutable, so that a job's count stays while its template does. What could not be counted is asked
again: a ResourceClaimTemplate may be applied after the job.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from holdfast.api.errors import Malformed
from holdfast.api.gpus import Claim, ClaimRef, Cluster, DeviceClass, Uncounted, asks_cluster, gpus_of
from holdfast.api.nesting import read
from holdfast.operator.kube.clusterview import key_of
from holdfast.operator.kube.objects import CLAIM_TEMPLATES, CLAIMS, DEVICE_CLASSES, Job
from holdfast.operator.kube.writes import Writes
from holdfast.wire.kube.reply import Absent, Declined

ASK_AGAIN_S: Final = 10.0
"""As long as nobody sees why a job that was just applied does not begin."""
Count = int | Uncounted | None
"""None: the spec says it by itself, or nothing that has to be read of the cluster."""


@dataclass(frozen=True)
class _Counted:
    """Of a template, as of `generation` of the job; `at` is seconds of the clock."""

    uid: str
    generation: int
    template: bytes
    count: Count
    at: float


class GpuCounts:
    """What was counted for each job. `clock` is seconds that do not jump by much."""

    def __init__(self, writes: Writes, clock: Callable[[], float]) -> None:
        self._writes = writes
        self._clock = clock
        self._counted: dict[str, _Counted] = {}

    async def of(self, job: Job) -> Count:
        """GPUs of the trainer's container by what its cluster says. Raises Unavailable and Fenced."""
        about, key = job.metadata, key_of(job.metadata)
        held = self._counted.get(key)
        if held is not None and held.uid != about.uid:
            held = None
        is_final = held is not None and not isinstance(held.count, Uncounted)
        # Most looks are at a spec that is known: it is not read again for them.
        if held is not None and is_final and held.generation == about.generation:
            return held.count
        template = _template_of(job)
        refs, classes = asks_cluster(template)
        written = msgspec.json.encode(template) if refs or classes else b""
        count: Count = None
        if held is not None and held.template == written and (is_final or self._clock() - held.at < ASK_AGAIN_S):
            count, at = held.count, held.at
        else:
            count, at = await self._count(about.namespace, template, refs) if written else None, self._clock()
        self._counted[key] = _Counted(about.uid, about.generation, written, count, at)
        return count

    def known(self, job: Job) -> Count:
        """What was counted last, without asking anybody."""
        held = self._counted.get(key_of(job.metadata))
        return held.count if held is not None and held.uid == job.metadata.uid else None

    def forget(self, key: str) -> None:
        """The job is gone."""
        self._counted.pop(key, None)

    async def _count(self, namespace: str, template: Any, refs: frozenset[ClaimRef]) -> Count:
        claims: dict[ClaimRef, Claim | None] = {}
        unread = ""
        for ref in sorted(refs):
            try:
                claims[ref] = await self._claim(namespace, ref)
            except Declined as error:
                unread = unread or f"the operator may not read {ref.kind} {ref.name}: {error.message}"
            except (Malformed, msgspec.MsgspecError) as error:
                unread = unread or f"{ref.kind} {ref.name} cannot be read: {error}"
        counted = gpus_of(template, Cluster(claims, await self._classes()))
        return Uncounted(unread) if unread and isinstance(counted, Uncounted) else counted

    async def _claim(self, namespace: str, ref: ClaimRef) -> Claim | None:
        try:
            if ref.kind == CLAIM_TEMPLATES.kind:
                return (await self._writes.fetch(CLAIM_TEMPLATES, (namespace, ref.name))).spec.spec
            return (await self._writes.fetch(CLAIMS, (namespace, ref.name))).spec
        except Absent:
            return None

    async def _classes(self) -> dict[str, DeviceClass]:
        """Those that can be read: those of known drivers are known without."""
        try:
            found = await self._writes.fetch(DEVICE_CLASSES, ("", ""))
        except (Declined, Malformed, msgspec.MsgspecError):
            return {}
        return {each.metadata.name: each.spec for each in found.items}


def _template_of(job: Job) -> Any:
    """As it was written, None where the spec says how many workers a node runs, or cannot be read."""
    try:
        spec = read(bytes(job.spec), dict[str, Any])
    except (Malformed, msgspec.MsgspecError):
        return None
    return spec.get("template") if spec.get("processesPerNode") is None else None
