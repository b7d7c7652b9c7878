"""Agents: node reports in, the pace and what was taken out."""

from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

import msgspec
from aiohttp import WSCloseCode, web

from holdfast.api.errors import HoldfastError
from holdfast.api.round import Round
from holdfast.api.telemetry import (
    AgentHello,
    DeviceAnswered,
    FromAgent,
    NodeEvent,
    NodeReport,
    ParametersChanged,
    ParametersFingerprinted,
    RankSample,
    ReportTaken,
)
from holdfast.watchdog.auth import Caller
from holdfast.watchdog.server.answer import CALLER
from holdfast.watchdog.server.connection import AgentConnection
from holdfast.watchdog.server.frames import BadMessage, converse, decoded, first, open_socket, sender
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.names import check_peer, check_room, check_speaks_for
from holdfast.watchdog.server.outbox import Farewell, Outbox, Slot
from holdfast.watchdog.server.tally import Count
from holdfast.watchdog.server.watchdog import WATCHDOG, Watchdog

Said = TypeVar("Said", bound=RankSample | NodeEvent)

# Eight ranks and GPUs take about 4 KiB; a node with many events behind it takes more.
FRAME_BYTES_MAX = 1024 * 1024

MESSAGES: msgspec.msgpack.Decoder[FromAgent] = msgspec.msgpack.Decoder(FromAgent)


async def serve_agent(request: web.Request) -> web.WebSocketResponse:
    """One agent's connection, from its `AgentHello` to its end."""
    watchdog = request.app[WATCHDOG]
    socket = await open_socket(request, frame_bytes_max=FRAME_BYTES_MAX)
    outbox = Outbox(sender(request, socket))
    await converse(socket, outbox, watchdog.tally, lambda: _talk(watchdog, socket, outbox, request[CALLER]))
    return socket


async def _talk(watchdog: Watchdog, socket: web.WebSocketResponse, outbox: Outbox, caller: Caller) -> None:
    frames = decoded(socket, MESSAGES)
    hello = await first(frames)
    if not isinstance(hello, AgentHello):
        raise BadMessage("the first message must be AgentHello")
    check_peer(node=hello.node, boot=hello.boot)
    check_speaks_for(caller, hello.node)
    try:
        host = watchdog.brought(hello.job)
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
        await _listen(host, agent, frames)
    finally:
        if host.agents.get(agent.node) is agent:
            del host.agents[agent.node]


async def _listen(host: JobHost, agent: AgentConnection, frames: AsyncIterator[FromAgent]) -> None:
    async for report in frames:
        if host.agents.get(agent.node) is not agent:
            return  # a newer connection of the node has taken over
        if not isinstance(report, NodeReport) or (report.node, report.boot) != (agent.node, agent.boot):
            raise BadMessage(f"expected reports of node {agent.node}, boot {agent.boot}, and nothing else")
        taken = host.taken.get(agent.node)
        if taken is not None and taken.boot == report.boot and report.sequence <= taken.sequence:
            host.tally.add(Count.DUPLICATE_REPORTS)
        else:
            host.tally.add(Count.REPORTS)
            host.take_report(credible(report, host.job.state.round))
            if not report.events:
                continue  # nobody keeps what only tells of the present; answering it would double the traffic
        agent.outbox.put(Slot.TAKEN, msgspec.msgpack.encode(ReportTaken(host.taken[agent.node].sequence)))


# Whose word counts about which rank: a pod speaks for the ranks of the member that it is, and for no others.
#
# An agent reads what pods leave in their own volumes, and passes it on with the name of the pod as the kubelet
# knows it. Any pod of a job's namespace may say that it is of that job; only a member of the round has ranks in
# it.


def credible(report: NodeReport, newest: Round | None) -> NodeReport:
    """The report without what pods say of ranks that are not theirs. What is of other rounds counts nowhere."""
    if newest is None:
        return report
    ranks, events = _own(report.ranks, newest), _own(report.events, newest)
    if len(ranks) == len(report.ranks) and len(events) == len(report.events):
        return report
    return msgspec.structs.replace(report, ranks=ranks, events=events)


def _own(said: Iterable[Said], newest: Round) -> tuple[Said, ...]:
    return tuple(each for each in said if _is_own(each, newest))


def _is_own(said: RankSample | NodeEvent, newest: Round) -> bool:
    if not isinstance(said, RankSample | ParametersFingerprinted | DeviceAnswered | ParametersChanged):
        return True  # of the node: the agent's own word
    if not said.member or said.round != newest.number:
        return True
    share = newest.share_of(said.member)
    return share is not None and share.first_rank <= said.rank < share.first_rank + share.local_size
