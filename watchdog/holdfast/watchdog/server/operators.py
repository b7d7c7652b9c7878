"""The operator: what it sees of nodes in, the plan out."""

from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

from holdfast.api.errors import HoldfastError
from holdfast.api.event import NodeChanged, PodChanged
from holdfast.api.plan import FromOperator, NodeObserved, OperatorHello, PodObserved
from holdfast.watchdog.detectors.detector import Placed
from holdfast.watchdog.server.connection import Connection
from holdfast.watchdog.server.frames import BadMessage, converse, decoded, first, open_socket
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.outbox import Outbox
from holdfast.watchdog.server.watchdog import WATCHDOG, Watchdog

FRAME_BYTES_MAX = 64 * 1024

MESSAGES: msgspec.msgpack.Decoder[FromOperator] = msgspec.msgpack.Decoder(FromOperator)


async def serve_operator(request: web.Request) -> web.WebSocketResponse:
    """One operator's connection, from its `OperatorHello` to its end."""
    watchdog = request.app[WATCHDOG]
    socket = await open_socket(request, frame_bytes_max=FRAME_BYTES_MAX)
    outbox = Outbox()
    await converse(socket, outbox, watchdog.tally, lambda: _talk(watchdog, socket, outbox))
    return socket


async def _talk(watchdog: Watchdog, socket: web.WebSocketResponse, outbox: Outbox) -> None:
    frames = decoded(socket, MESSAGES)
    hello = await first(frames)
    if not isinstance(hello, OperatorHello):
        raise BadMessage("the first message must be OperatorHello")
    try:
        host = watchdog.host(hello.job)
    except HoldfastError as error:
        raise BadMessage(str(error)) from error
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
