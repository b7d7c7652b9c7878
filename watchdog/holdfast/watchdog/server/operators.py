"""The operator: what it sees of nodes in, the plan out."""

from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

from holdfast.api.errors import HoldfastError
from holdfast.api.event import NodeChanged, PodChanged
from holdfast.api.plan import FromOperator, NodeObserved, OperatorHello, PodObserved
from holdfast.watchdog.detectors.detector import Placed
from holdfast.watchdog.server.connection import (
    BadMessage,
    Connection,
    Outbox,
    decoded,
    first,
    serve,
)
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.watchdog import WATCHDOG

FRAME_BYTES_MAX = 64 * 1024

MESSAGES: msgspec.msgpack.Decoder[FromOperator] = msgspec.msgpack.Decoder(FromOperator)


async def serve_operator(request: web.Request) -> web.WebSocketResponse:
    """One operator's connection, from its `OperatorHello` to its end."""
    return await serve(request, request.app[WATCHDOG].tally, _talk, frame_bytes_max=FRAME_BYTES_MAX)


async def _talk(request: web.Request, socket: web.WebSocketResponse, outbox: Outbox) -> None:
    frames = decoded(socket, MESSAGES)
    hello = await first(frames)
    if not isinstance(hello, OperatorHello):
        raise BadMessage("the first message must be OperatorHello")
    try:
        host = request.app[WATCHDOG].host(hello.job)
    except HoldfastError as error:
        raise BadMessage(str(error)) from error
    if hello.round is not None:
        host.reached(hello.round, "the status of its TrainingJob")
    operator = Connection(socket, outbox)
    host.operators.add(operator)
    host.show_operator(operator)
    try:
        await _listen(host, frames)
    finally:
        host.operators.discard(operator)


async def _listen(host: JobHost, frames: AsyncIterator[FromOperator]) -> None:
    async for message in frames:
        match message:
            case NodeObserved():
                if message.rack:
                    host.observe(Placed(message.node, message.rack))
                host.see(NodeChanged(message.node, message.state, message.reason, message.rack))
            case PodObserved():
                host.pods.see(message)
                host.see(PodChanged(message.member, message.node, message.state, message.reason, message.end))
            case OperatorHello():
                raise BadMessage("OperatorHello was said before")
