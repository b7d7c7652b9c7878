"""Agents: node reports in, the pace and what was taken out."""

from functools import partial

import msgspec
from aiohttp import WSCloseCode, web

from holdfast.api.errors import HoldfastError
from holdfast.api.telemetry import (
    AgentHello,
    FromAgent,
    NodeReport,
    ReportTaken,
)
from holdfast.watchdog.metrics.counts import Count
from holdfast.watchdog.server.answer import CALLER
from holdfast.watchdog.server.connection import (
    AgentConnection,
    BadMessage,
    Farewell,
    Outbox,
    Slot,
    first,
    listen,
    serve,
)
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.identity import check_peer, check_room, check_speaks_for, credible
from holdfast.watchdog.server.watchdog import WATCHDOG
from holdfast.watchdog.server.websocket import Socket

# Eight ranks and GPUs take about 4 KiB; a node with many events behind it takes more.
FRAME_BYTES_MAX = 1024 * 1024

MESSAGES: msgspec.msgpack.Decoder[FromAgent] = msgspec.msgpack.Decoder(FromAgent)


async def serve_agent(request: web.Request) -> web.StreamResponse:
    """One agent's connection, from its `AgentHello` to its end."""
    return await serve(request, request.app[WATCHDOG].tally, _talk, FRAME_BYTES_MAX)


async def _talk(request: web.Request, socket: Socket, outbox: Outbox) -> None:
    hello = await first(socket, MESSAGES)
    if not isinstance(hello, AgentHello):
        raise BadMessage("the first message must be AgentHello")
    check_peer(node=hello.node, boot=hello.boot)
    check_speaks_for(request[CALLER], hello.node)
    try:
        host = request.app[WATCHDOG].brought(hello.job)
        check_room(len(host.taken))
    except HoldfastError as error:
        raise BadMessage(str(error)) from error
    agent = AgentConnection(socket, outbox, node=hello.node, boot=hello.boot)
    older = host.agents.get(agent.node)
    host.agents[agent.node] = agent
    if older is not None:
        host.tally.add(Count.REPLACED_CONNECTIONS)
        reason = f"another agent has connected as node {agent.node}"
        older.outbox.finish(Farewell(WSCloseCode.POLICY_VIOLATION, reason))
    host.show_pace(agent)
    try:
        await listen(socket, MESSAGES, partial(_take, host, agent))
    finally:
        if host.agents.get(agent.node) is agent:
            del host.agents[agent.node]


def _take(host: JobHost, agent: AgentConnection, report: FromAgent) -> None:
    if host.agents.get(agent.node) is not agent:
        agent.socket.stop()  # a newer connection of the node has taken over
        return
    if not isinstance(report, NodeReport) or (report.node, report.boot) != (agent.node, agent.boot):
        raise BadMessage(f"expected reports of node {agent.node}, boot {agent.boot}, and nothing else")
    taken = host.taken.get(agent.node)
    if taken is not None and taken.boot == report.boot and report.sequence <= taken.sequence:
        host.tally.add(Count.DUPLICATE_REPORTS)
    else:
        host.tally.add(Count.REPORTS)
        host.take_report(credible(report, host.job.state.round))
        if not report.events:
            return  # nobody keeps what only tells of the present; answering it would double the traffic
    agent.outbox.put(Slot.TAKEN, msgspec.msgpack.encode(ReportTaken(host.taken[agent.node].sequence)))
