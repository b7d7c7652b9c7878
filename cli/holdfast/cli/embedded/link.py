"""The run's line to its watchdog: submitting, following, and the operator's connection."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Final

import aiohttp
import msgspec

from holdfast.api.decoding import decode, decode_json
from holdfast.api.errors import InvalidInput, Malformed, Problem, Unavailable
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
from holdfast.cli.watchdogclient import INCIDENTS, explanation

RECONNECT_S: Final = 0.1
SHOWN: msgspec.msgpack.Decoder[ToOperator] = msgspec.msgpack.Decoder(ToOperator)
ANSWER_TIMEOUT_S: Final = 5.0


class WatchdogLink:
    """One job at the local watchdog. Reads raise Unavailable while it is away; the operator's line reconnects."""

    def __init__(self, at: str, token: str, job: str) -> None:
        self._at = at
        self._job = job
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"}, timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        )

    async def close(self) -> None:
        await self._session.close()

    async def submit(self, policy: Policy) -> None:
        """Tell the watchdog of the job. The same policy again changes nothing."""
        await self._ask("POST", "/v1/jobs", msgspec.json.encode(policy))

    async def restart(self, reason: str, *, fresh: bool = False) -> None:
        """Bring a failed job back, or have one start over. Raises InvalidInput when the watchdog refuses."""
        action = InterventionAction.RESTART
        request = InterventionRequest(uuid.uuid4().hex, self._job, action, reason, fresh=fresh)
        content = await self._ask("POST", f"/v1/jobs/{self._job}/interventions", msgspec.json.encode(request))
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

    async def operate(self, outbox: "OperatorOutbox", show: Callable[[Plan], None]) -> None:
        """Be the operator, for ever: send what is observed, `show` every plan; reconnect when the line breaks."""
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError, Malformed):
                async with self._session.ws_connect(f"ws://{self._at}/v1/operator", heartbeat=5.0) as line:
                    await line.send_bytes(_encode(OperatorHello(self._job)))
                    await self._converse(line, outbox, show)
            await asyncio.sleep(RECONNECT_S)

    async def _converse(
        self, line: aiohttp.ClientWebSocketResponse, outbox: "OperatorOutbox", show: Callable[[Plan], None]
    ) -> None:
        sending = asyncio.create_task(self._send(line, outbox))
        try:
            async for message in line:
                if message.type is aiohttp.WSMsgType.BINARY:
                    shown = decode(SHOWN, message.data)
                    if isinstance(shown, Plan):
                        show(shown)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, line: aiohttp.ClientWebSocketResponse, outbox: "OperatorOutbox") -> None:
        async for observed in outbox.follow():
            await line.send_bytes(_encode(observed))

    async def _read(self, resource: str) -> bytes | None:
        return await self._ask("GET", f"/v1/jobs/{self._job}/{resource}", None)

    async def _ask(self, method: str, path: str, body: bytes | None) -> bytes | None:
        """The answer's content, None when there is no such thing. Raises Unavailable, InvalidInput."""
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method, f"http://{self._at}{path}", data=body, headers=headers
            ) as answer:
                content = await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unavailable(f"the watchdog does not answer at {self._at} ({error})") from error
        if answer.status == 404:
            return None
        if 400 <= answer.status < 500:
            raise InvalidInput(Problem("job", self._job, explanation(content)))
        if answer.status >= 500:
            raise Unavailable(f"the watchdog answered {answer.status}: {explanation(content)}")
        return content


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

    async def follow(self) -> AsyncIterator[NodeObserved]:
        """Everything known, then every change. One reader at a time."""
        told: dict[str, NodeObserved] = {}
        while True:
            self._changed.clear()
            for node, observed in list(self._newest.items()):
                if told.get(node) is not observed:
                    told[node] = observed
                    yield observed
            await self._changed.wait()


def _encode(message: FromOperator) -> bytes:
    return msgspec.msgpack.encode(message)
