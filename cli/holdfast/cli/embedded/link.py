"""The run's line to its watchdog: submitting, following, and the operator's connection."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Final, NoReturn

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.incident import Incident
from holdfast.api.intervention import (
    InterventionAction,
    InterventionOutcome,
    InterventionRequest,
    InterventionState,
)
from holdfast.api.plan import FromOperator, NodeObserved, OperatorHello, Plan, ToOperator
from holdfast.api.policy import Policy
from holdfast.api.status import JobStatus, RankStatus
from holdfast.cli.watchdogclient import INCIDENTS
from holdfast.wire.access import Access, Address, Credential
from holdfast.wire.http import WatchdogHttp
from holdfast.wire.line import Line, Manner, OnMalformed

ANSWER_TIMEOUT_S: Final = 5.0
MANNER: Final = Manner(
    client="run",
    retry_first_s=0.1,
    retry_most_s=0.1,  # its watchdog is on this machine, and is started again at once
    steady_s=0.0,
    ping_s=5.0,
    frame_bytes_max=16 * 1024 * 1024,
    on_malformed=OnMalformed.RECONNECT,
)


class WatchdogLink:
    """One job at the local watchdog. Reads raise Unavailable while it is away; the operator's line reconnects."""

    def __init__(self, at: str, token: str, job: str) -> None:
        self._job = job
        self._access = Access(Address.parse(at, given_by="--listen"), Credential(token))
        self._http = WatchdogHttp(self._access, ANSWER_TIMEOUT_S)

    async def close(self) -> None:
        await self._http.close()

    async def submit(self, policy: Policy) -> None:
        """Tell the watchdog of the job. The same policy again changes nothing."""
        await self._http.ask("POST", "/v1/jobs", msgspec.json.encode(policy))

    async def restart(self, reason: str, *, fresh: bool = False) -> None:
        """Bring a failed job back, or have one start over. Raises InvalidInput when the watchdog refuses."""
        action = InterventionAction.RESTART
        request = InterventionRequest(uuid.uuid4().hex, self._job, action, reason, fresh=fresh)
        content = await self._http.ask("POST", f"/v1/jobs/{self._job}/interventions", msgspec.json.encode(request))
        outcome = decode_json(content or b"", InterventionOutcome)
        if outcome.state is InterventionState.REFUSED:
            raise InvalidInput(Problem("job", self._job, outcome.outcome))

    async def status(self) -> JobStatus | None:
        """Where the job is, None when the watchdog does not know it."""
        content = await self._read("status")
        return None if content is None else decode_json(content, JobStatus)

    async def ranks(self) -> tuple[RankStatus, ...]:
        """Every rank of the round."""
        return decode_json(await self._read("ranks") or b"[]", tuple[RankStatus, ...])

    async def incidents(self) -> tuple[Incident, ...]:
        """Oldest first; the watchdog answers with the newest first."""
        return decode_json(await self._read(INCIDENTS) or b"[]", tuple[Incident, ...])[::-1]

    async def operate(self, outbox: "OperatorOutbox", show: Callable[[Plan], None]) -> NoReturn:
        """Be the operator, for ever: send what is observed, `show` every plan; reconnect when the line breaks."""
        speaker = LocalOperator(self._job, outbox, show)
        decoder = msgspec.msgpack.Decoder(ToOperator)
        await Line(self._access, "/v1/operator", speaker, decoder, MANNER, self._job).run()

    async def _read(self, resource: str) -> bytes | None:
        return await self._http.ask("GET", f"/v1/jobs/{self._job}/{resource}")


class LocalOperator:
    """Fills `Speaker`: the operator of the machine, which is told the plan and reads no report."""

    def __init__(self, job: str, outbox: "OperatorOutbox", show: Callable[[Plan], None]) -> None:
        self._job = job
        self._outbox = outbox
        self._show = show

    async def speech(self) -> AsyncGenerator[FromOperator, None]:
        yield OperatorHello(self._job)
        async with contextlib.aclosing(self._outbox.follow()) as changes:
            async for observed in changes:
                yield observed

    def hear(self, shown: ToOperator) -> None:
        if isinstance(shown, Plan):
            self._show(shown)

    def lost(self) -> None:
        """The plan stands until another one is shown."""


class OperatorOutbox:
    """What the operator has to say: the newest state of every node, again on each new connection."""

    def __init__(self) -> None:
        self._newest: dict[str, NodeObserved] = {}
        self._changed = asyncio.Event()

    def put(self, observed: NodeObserved) -> None:
        # Taken out first, so that the order is that of the changes.
        self._newest.pop(observed.node, None)
        self._newest[observed.node] = observed
        self._changed.set()

    async def follow(self) -> AsyncGenerator[NodeObserved, None]:
        """Everything known, then every change. One reader at a time."""
        told: dict[str, NodeObserved] = {}
        while True:
            self._changed.clear()
            for node, observed in list(self._newest.items()):
                if told.get(node) is not observed:
                    told[node] = observed
                    yield observed
            await self._changed.wait()
