"""Which of several operators acts: the holder of a Lease.

A leader acts only until `GIVE_UP` of the lease's length after its last renewal was sent; another takes over only
after it has seen no renewal for the whole length. Both measure on their own monotonic clocks, so neither wall
clocks nor a process that was stopped for a while can make two of them act at once. The times in the Lease are for
people.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final, NoReturn

import msgspec

from holdfast.api.errors import Fenced, HoldfastError
from holdfast.api.nesting import read
from holdfast.operator.kube.objects import Metadata, Object, Resource, precise_text_of
from holdfast.wire.kube.client import KubeClient, Request
from holdfast.wire.kube.reply import Absent, Conflicting

logger = logging.getLogger(__name__)

RENEW: Final = 0.2  # of the lease's length: three renewals may fail before it is given up
GIVE_UP: Final = 2 / 3
LOOK: Final = 0.1
GONE: Final = "deleted"  # in place of the version of a Lease that is there no more


class LeaseSpec(Object, frozen=True, gc=False):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str | None = None
    lease_transitions: int = 0


class Lease(Object, frozen=True, gc=False):
    metadata: Metadata
    spec: LeaseSpec = LeaseSpec()


LEASES = Resource("/apis/coordination.k8s.io/v1", "leases", "Lease", Lease)


class Elector:
    """One candidate. `where` is the Lease's namespace and name.

    `clock` is monotonic seconds, and all that counts; `wall` is seconds since the epoch, for people to read.
    """

    def __init__(
        self,
        api: KubeClient,
        where: tuple[str, str],
        identity: str,
        lease_s: float,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._api = api
        self._where = where
        self._identity = identity
        self._lease_s = lease_s
        self._clock = clock
        self._wall = wall
        self._held: Lease | None = None
        self._until = float("-inf")
        self._rival = ""  # the version of the Lease somebody else holds, and since when it has been that
        self._rival_since = 0.0

    def leads(self) -> bool:
        """Whether this one may act at this moment."""
        return self._held is not None and self._clock() < self._until

    async def win(self) -> None:
        """Wait until this one leads."""
        told = ""
        while True:
            try:
                await self._try_to_take()
                if self.leads():
                    logger.info("leading identity=%s", self._identity)
                    return
                told = ""
            except Conflicting:
                pass  # somebody else was quicker
            except HoldfastError as error:
                if str(error) != told:
                    told = str(error)
                    logger.warning("cannot ask for the lease error=%s", error)
            await asyncio.sleep(self._lease_s * LOOK)

    async def keep(self) -> NoReturn:
        """Renew until it is lost. Raises Fenced; `leads` is False from that moment at the latest."""
        while self.leads():
            await asyncio.sleep(min(self._lease_s * RENEW, max(0.0, self._until - self._clock())))
            try:
                async with asyncio.timeout(max(0.0, self._until - self._clock())):
                    assert self._held is not None, "it leads"
                    sent_at = self._clock()
                    await self._claim(self._held, sent_at)
            except TimeoutError:
                break
            except (Conflicting, Absent) as error:
                # Somebody wrote the Lease, or deleted it. Only when it still names us is it ours.
                with contextlib.suppress(HoldfastError):  # else it is decided by time
                    lease = await self._read()
                    if lease.spec.holder_identity == self._identity:
                        self._held = lease
                    else:
                        self._until = float("-inf")
                        logger.error("the lease was taken holder=%s error=%s", lease.spec.holder_identity, error)
            except HoldfastError as error:
                logger.warning("cannot renew the lease error=%s", error)
        self._held = None
        raise Fenced("the lease could not be renewed in time: another operator may lead now")

    async def release(self) -> None:
        """Let another lead at once. The work must have stopped."""
        held, self._held = self._held, None
        if held is None or self._clock() >= self._until:
            return
        try:
            await self._write(held, {"holderIdentity": "", "leaseDurationSeconds": 1})
        except HoldfastError as error:
            logger.warning("cannot give the lease back error=%s", error)

    async def _try_to_take(self) -> None:
        sent_at = self._clock()
        try:
            lease = await self._read()
        except Absent:
            # One that was there has been deleted: its holder acts until it finds out.
            if self._rival and self._unchanged_s(GONE, sent_at) < self._lease_s:
                return
            await self._claim(None, sent_at, acquireTime=precise_text_of(self._wall()), leaseTransitions=0)
            return
        spec = lease.spec
        unchanged_s = self._unchanged_s(lease.metadata.resource_version, sent_at)
        if spec.holder_identity and unchanged_s < max(spec.lease_duration_seconds, 1):
            return
        sent_at = self._clock()
        transitions = spec.lease_transitions + 1
        await self._claim(lease, sent_at, acquireTime=precise_text_of(self._wall()), leaseTransitions=transitions)

    def _unchanged_s(self, version: str, seen_at: float) -> float:
        """For how long the Lease has been seen in that version."""
        if version != self._rival:
            self._rival, self._rival_since = version, seen_at
        return seen_at - self._rival_since

    async def _claim(self, held: Lease | None, sent_at: float, **more: Any) -> None:
        ours = {"holderIdentity": self._identity, "leaseDurationSeconds": max(1, round(self._lease_s)), **more}
        self._held, self._until = await self._write(held, ours), sent_at + self._lease_s * GIVE_UP

    async def _read(self) -> Lease:
        return await self._ask("GET", LEASES.path(*self._where))

    async def _write(self, held: Lease | None, spec: dict[str, Any]) -> Lease:
        """Conditional on the Lease being as it was read; None: on there being none."""
        namespace, name = self._where
        metadata = {"name": name, "namespace": namespace}
        written = {"renewTime": precise_text_of(self._wall()), **spec}
        manifest = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": written}
        if held is None:
            return await self._ask("POST", LEASES.path(namespace), manifest)
        metadata["resourceVersion"] = held.metadata.resource_version
        kept = {"acquireTime": held.spec.acquire_time, "leaseTransitions": held.spec.lease_transitions}
        return await self._ask("PUT", LEASES.path(namespace, name), manifest | {"spec": kept | written})

    async def _ask(self, verb: str, path: str, manifest: dict[str, Any] | None = None) -> Lease:
        body = None if manifest is None else msgspec.json.encode(manifest)
        request = Request(verb, path, body=body, timeout_s=self._lease_s * RENEW)
        return read(await self._api.ask(request), Lease)
