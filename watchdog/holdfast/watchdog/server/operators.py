"""The operator: what it sees of nodes in, the plan out."""

from functools import partial

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
    first,
    listen,
    serve,
)
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.watchdog import WATCHDOG
from holdfast.watchdog.server.websocket import Socket

FRAME_BYTES_MAX = 64 * 1024

MESSAGES: msgspec.msgpack.Decoder[FromOperator] = msgspec.msgpack.Decoder(FromOperator)


async def serve_operator(request: web.Request) -> web.StreamResponse:
    """One operator's connection, from its `OperatorHello` to its end."""
    return await serve(request, request.app[WATCHDOG].tally, _talk, FRAME_BYTES_MAX)


async def _talk(request: web.Request, socket: Socket, outbox: Outbox) -> None:
    hello = await first(socket, MESSAGES)
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
        await listen(socket, MESSAGES, partial(_take, host))
    finally:
        host.operators.discard(operator)


def _take(host: JobHost, message: FromOperator) -> None:
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
