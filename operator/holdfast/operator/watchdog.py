"""The watchdog as the operator talks to it: what it is asked of any job, and the line that each job has to it.

On a job's line what is seen goes in, the plan and the report come out.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path
from typing import Final, NoReturn

import aiohttp
import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.intervention import InterventionOutcome, InterventionRequest
from holdfast.api.plan import (
    FromOperator,
    JobReport,
    NodeObserved,
    OperatorHello,
    Plan,
    PodEnd,
    PodObserved,
    PodState,
    ToOperator,
)
from holdfast.api.policy import Policy
from holdfast.wire.access import Access, Address, Credential, Trust
from holdfast.wire.http import WatchdogHttp
from holdfast.wire.line import Line, Manner, OnMalformed

MANNER: Final = Manner(
    client="operator",
    retry_first_s=0.1,
    retry_most_s=5.0,
    steady_s=0.0,
    ping_s=5.0,
    frame_bytes_max=16 * 1024 * 1024,
    handshake_s=10.0,
    close_s=1.0,
    # The plan before would be taken for the one that belongs to the next report.
    on_malformed=OnMalformed.RECONNECT,
)

Seen = NodeObserved | PodObserved


class Watchdog:
    """At HOST:PORT, with the token of a file that is read for every request: projected tokens change.

    `ca_file` names who may have signed its certificate, and is read as often; without, it is spoken to plainly.

    All methods raise Unavailable when it is away or in trouble, InvalidInput when it refuses.
    """

    def __init__(self, at: str, token_file: Path, ca_file: Path | None = None) -> None:
        address = Address.parse(at, given_by="--watchdog")
        self.access = Access(address, Credential(file=token_file), Trust(ca_file, given_by="--watchdog-ca-file"))
        self._http = WatchdogHttp(self.access)

    async def close(self) -> None:
        """End every connection."""
        await self._http.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        """For the jobs' lines: looking up the watchdog's name is shared."""
        return self._http.session

    def authority(self) -> str:
        """Who may have signed its certificate, as PEM; empty when it is spoken to plainly. Raises Unavailable."""
        self.access.trust.context()
        return self.access.trust.pem()

    async def submit(self, policy: Policy) -> None:
        """Tell it of the job. The same policy again changes nothing."""
        await self._http.ask("POST", "/v1/jobs", msgspec.json.encode(policy))

    async def forget(self, job: str) -> None:
        """Tell it that the job is gone for good. One it does not know is fine."""
        await self._http.ask("DELETE", f"/v1/jobs/{job}")

    async def intervene(self, request: InterventionRequest) -> InterventionOutcome | None:
        """What became of it, None when the watchdog does not know the job. The same `id` again is the same one."""
        path = f"/v1/jobs/{request.job}/interventions"
        content = await self._http.ask("POST", path, msgspec.json.encode(request))
        return None if content is None else decode_json(content, InterventionOutcome)


class JobLine:
    """Connects by itself, and again. `changed` is called when a report came, or the line was lost.

    A plan counts from the report that follows it: by itself, the plan of a job that has ended would take away the
    pods of one that goes on.

    `clock` is monotonic seconds. `reached` is the newest round that the job's own status tells of.
    """

    def __init__(
        self,
        watchdog: Watchdog,
        job: str,
        changed: Callable[[], None],
        clock: Callable[[], float],
        reached: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._watchdog = watchdog
        self._job = job
        self._changed = changed
        self._clock = clock
        self._reached = reached
        self._lost_at: float | None = clock()
        self._outbox = Outbox()
        self._line = Line(watchdog.access, "/v1/operator", self, msgspec.msgpack.Decoder(ToOperator), MANNER, job)
        self._coming: Plan | None = None
        self.plan: Plan | None = None
        self.report: JobReport | None = None
        self.nodes: frozenset[str] = frozenset()
        """The nodes the plan names."""

    @property
    def connected(self) -> bool:
        """Whether the watchdog is there now, and has said on this line how the job is."""
        return self._lost_at is None

    def heard_age_s(self) -> float:
        """For how long it has been away; 0 while it is there."""
        return 0.0 if self._lost_at is None else max(self._clock() - self._lost_at, 1e-3)

    def tell(self, seen: Iterable[Seen]) -> None:
        """All that is seen now; what changed is sent."""
        self._outbox.put(seen)

    async def run(self) -> NoReturn:
        """Until cancelled."""
        await self._line.run(self._watchdog.session)

    async def speech(self) -> AsyncGenerator[FromOperator, None]:
        """Whose line it is, all that is seen, and every change of it."""
        self._coming = None
        yield OperatorHello(self._job, self._reached())
        async with contextlib.aclosing(self._outbox.follow()) as changes:
            async for seen in changes:
                yield seen

    def lost(self) -> None:
        """It counts from now on, and only if it counted at all, that the watchdog is away."""
        if self._lost_at is None:
            self._lost_at = self._clock()
            self._changed()

    def hear(self, shown: ToOperator) -> None:
        """A plan, or the report that follows it."""
        if isinstance(shown, Plan):
            self._coming = shown
            return
        if (plan := self._coming) is not None:
            self.plan, self._coming = plan, None
            orders = (each.node for each in (*plan.avoid, *plan.cordon))
            self.nodes = frozenset((*orders, *plan.returned))
        self.report = shown
        # From here on, not from the greeting: what was shown before the line was lost may be out of date, and
        # a job that ended meanwhile would get new pods.
        self._lost_at = None
        self._changed()


class Outbox:
    """What is to be told: the newest of every node and pod, all of it again on each new connection."""

    def __init__(self) -> None:
        self._newest: dict[tuple[type[Seen], str], Seen] = {}
        self._parted: dict[str, PodObserved] = {}
        self._changed = asyncio.Event()

    def put(self, seen: Iterable[Seen]) -> None:
        """All there is. A pod that is there no more is told as gone, once; a node is not spoken of any more."""
        newest = {
            (type(each), each.node if isinstance(each, NodeObserved) else each.member): each for each in seen
        }
        for key, old in self._newest.items():
            if key not in newest and isinstance(old, PodObserved) and old.state is not PodState.GONE:
                # Why it was on its way out is known; any other is gone at once because somebody forced it.
                end = old.end if old.state is PodState.LEAVING else PodEnd.DELETED
                self._parted[old.member] = PodObserved(
                    old.member, old.node, PodState.GONE, "the pod was deleted", end
                )
        if newest != self._newest or self._parted:
            self._newest = newest
            self._changed.set()

    async def follow(self) -> AsyncGenerator[Seen, None]:
        """Everything known, then every change. One reader at a time."""
        told: dict[tuple[type[Seen], str], Seen] = {}
        while True:
            self._changed.clear()
            # First who is gone: another pod may have the name by now.
            while self._parted:
                member = next(iter(self._parted))
                told.pop((PodObserved, member), None)
                yield self._parted[member]
                # Taken out only now: while it was being sent the line may have broken.
                self._parted.pop(member, None)
            for key, seen in tuple(self._newest.items()):
                if told.get(key) != seen:
                    told[key] = seen
                    yield seen
            await self._changed.wait()
