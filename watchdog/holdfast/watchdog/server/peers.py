"""Who is connected, and what each may say: launchers, agents of nodes, the operator."""

import hashlib
import math
from functools import partial

import msgspec
from aiohttp import WSCloseCode, web

from holdfast.api import event, membership, runmanifest
from holdfast.api.bounds import NODES_MAX, PER_NODE_MAX
from holdfast.api.checkpoint import TOLD_MAX
from holdfast.api.decoding import Decoder
from holdfast.api.errors import HoldfastError
from holdfast.api.plan import FromOperator, NodeObserved, OperatorHello, PodObserved
from holdfast.api.policy import Policy
from holdfast.api.profile import ProfileTold
from holdfast.api.scalars import ScalarsLogged
from holdfast.api.selftest import Tested
from holdfast.api.stacks import StackTold
from holdfast.api.telemetry import AgentHello, FromAgent, NodeReport, ReportTaken
from holdfast.api.workeroutput import TAIL_BYTES_MAX, WorkerOutput
from holdfast.watchdog.detectors import detector
from holdfast.watchdog.metrics.counts import Count
from holdfast.watchdog.server import identity
from holdfast.watchdog.server.answer import CALLER
from holdfast.watchdog.server.connection import (
    AgentConnection,
    BadMessage,
    Connection,
    Farewell,
    LauncherConnection,
    Outbox,
    Slot,
    first,
    listen,
    serve,
)
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.reports import AgentMessages
from holdfast.watchdog.server.watchdog import WATCHDOG
from holdfast.watchdog.server.websocket import Socket
from holdfast.watchdog.settings import ClusterPolicy

# A launcher's longest messages carry the last lines of a worker's error, and the end of its output.
FRAME_BYTES_MAX = 64 * 1024
# Eight ranks and GPUs take about 4 KiB; a node with many events behind it takes more.
REPORT_BYTES_MAX = 1024 * 1024
PORTS_MAX = 64
ENDED_WITH_MAX = 64
YEAR_10000_S = 253_402_300_800.0

LAUNCHER_MESSAGES: msgspec.msgpack.Decoder[membership.FromLauncher] = msgspec.msgpack.Decoder(
    membership.FromLauncher
)
AGENT_MESSAGES: Decoder[FromAgent] = AgentMessages()
OPERATOR_MESSAGES: msgspec.msgpack.Decoder[FromOperator] = msgspec.msgpack.Decoder(FromOperator)


# Launchers: membership messages in, the desired state out.


async def serve_launcher(request: web.Request) -> web.StreamResponse:
    """One launcher's connection, from its `Join` to its end."""
    return await serve(request, request.app[WATCHDOG].tally, _talk_to_launcher, FRAME_BYTES_MAX)


async def _talk_to_launcher(request: web.Request, socket: Socket, outbox: Outbox) -> None:
    watchdog = request.app[WATCHDOG]
    join = await first(socket, LAUNCHER_MESSAGES)
    if not isinstance(join, membership.Join):
        raise BadMessage("the first message must be Join")
    try:
        _check(join)
        identity.check_allowed(request[CALLER], join.job)
        host = watchdog.brought(join.job)
        identity.check_room(len(host.launchers))
        await identity.check_identity(host, request[CALLER], join)
    except identity.NotSeenYet:
        raise
    except HoldfastError as error:
        await socket.send(msgspec.msgpack.encode(membership.Refused(str(error))))
        raise BadMessage(str(error)) from error
    launcher = LauncherConnection(
        socket,
        outbox,
        member=join.member,
        node=join.node,
        boot=join.boot,
        tells_stacks=join.tells_stacks,
        takes_profiles=join.takes_profiles,
        takes_ledgers=join.takes_ledgers,
    )
    older = host.launchers.get(launcher.member)
    host.launchers[launcher.member] = launcher
    if older is not None:
        host.tally.add(Count.REPLACED_CONNECTIONS)
        reason = f"another launcher has joined as member {launcher.member}"
        if older.boot != launcher.boot:  # it is told to go, or the two would fight for ever
            older.show(Slot.DESIRED, membership.Refused(reason))
        older.outbox.finish(Farewell(WSCloseCode.POLICY_VIOLATION, reason))
    _joined(host, launcher, join, watchdog.cluster)
    try:
        heard = detector.Heard(launcher.member)
        await listen(socket, LAUNCHER_MESSAGES, partial(_take_from_launcher, host, launcher, heard))
    finally:
        # The connection ended; that is a fault unless it was meant, by either side.
        if host.launchers.get(launcher.member) is launcher:
            del host.launchers[launcher.member]
            if not launcher.left and not host.closing:
                host.observe(detector.Disconnected(launcher.member))


def _check(join: membership.Join) -> None:
    """Raises BadMessage when the launcher cannot be a member, whatever the job."""
    identity.check_peer(member=join.member, node=join.node, boot=join.boot)
    if not 1 <= join.local_size <= PER_NODE_MAX:
        raise BadMessage(f"local_size: {join.local_size} is not accepted; give 1 to {PER_NODE_MAX}")
    if join.nodes is not None and not 1 <= join.nodes[0] <= join.nodes[1] <= NODES_MAX:
        raise BadMessage(f"nodes: {join.nodes} is not accepted; give a range within 1 to {NODES_MAX}")
    if not 0 <= join.transfer_port <= 65535:
        raise BadMessage(f"transfer_port: {join.transfer_port} is not accepted; give a TCP port, or 0 for none")
    if not 1 <= len(join.ports) <= PORTS_MAX or not all(1 <= port <= 65535 for port in join.ports):
        raise BadMessage(f"ports: {join.ports[:4]} is not accepted; reserve 1 to {PORTS_MAX} TCP ports")


def _joined(host: JobHost, launcher: LauncherConnection, join: membership.Join, cluster: ClusterPolicy) -> None:
    if host.job.state.policy is None and join.nodes is not None:
        # Started by hand or by stock torchrun: the launcher's own range is all that anybody says of the job.
        policy = Policy(join.job, *join.nodes, processes_per_node=join.local_size)
        host.record(event.JobSubmitted(cluster.applied_to(policy)))
    if host.job.state.round is not None:
        # Before it has one it goes on from any number: launchers started by hand may be those of an earlier job.
        host.reached(join.shown, f"launcher {launcher.member}")
    host.observe(detector.Connected(launcher.member, launcher.node))
    fields = {name: getattr(join, name) for name in event.MemberJoined.__struct_fields__ if name != "transfer"}
    transfer = f"{join.address}:{join.transfer_port}" if join.transfer_port else ""
    host.record(event.MemberJoined(**fields, transfer=transfer))
    host.show_desired(launcher)


def _take_from_launcher(
    host: JobHost, launcher: LauncherConnection, heard: detector.Heard, message: membership.FromLauncher
) -> None:
    if host.launchers.get(launcher.member) is not launcher:
        launcher.socket.stop()  # a newer connection of the member has taken over: this one counts no more
        return
    host.hear(heard)
    if isinstance(message, membership.Beat):
        return  # it says nothing but that the launcher lives, which every message does
    if isinstance(message, membership.Leave):
        host.record(event.MemberLeft(launcher.member, message.reason))
        host.observe(detector.Left(launcher.member))
        launcher.left = True
        launcher.outbox.finish(Farewell(WSCloseCode.OK, "it left"))
        launcher.socket.stop()
        return
    if isinstance(message, membership.Join):
        raise BadMessage("Join was said before")
    heed(host, launcher, message)


# They count for the newest round alone, and of a member that has ranks in it.
OfRound = (
    membership.RoundEntered
    | membership.TrainingBegan
    | membership.WorkersFinished
    | membership.CheckpointCommitted
    | membership.CheckpointsStored
    | membership.RunDescribed
    | membership.Restored
)


def heed(host: JobHost, launcher: LauncherConnection, message: membership.FromLauncher) -> None:
    """Record or observe what a member tells. What is of another round is only counted."""
    member, state = launcher.member, host.job.state
    if isinstance(message, membership.Restored) and message.rank != 0:
        return  # every rank restores the same step; one report is enough
    if isinstance(message, OfRound):
        newest = state.round
        if newest is None or newest.number != message.round or newest.share_of(member) is None:
            host.tally.add(Count.FENCED_MESSAGES)
            return
    match message:
        case membership.Warmed():
            host.record(event.MemberWarmed(member))
        case membership.RoundEntered():
            reentry = (message.reentrant, message.last_step, message.reentry, message.because)
            host.record(event.MemberEntered(member, message.round, *reentry))
        case membership.GroupReady():
            host.record(event.MemberReady(member, message.epoch))
        case membership.TrainingBegan():
            # The first sign of a round counts; of a script that publishes its steps none is needed.
            if state.signed_at is None and not state.publishes:
                host.record(event.RoundBegan(member, message.round))
        case membership.WorkersFinished():
            # What is found comes first: a round that ended with it is not a job that succeeded.
            host.observe(detector.Finished(member, message.round, message.nonfinite))
            host.record(event.MemberFinished(member, message.round, message.last_step, message.nonfinite))
        case membership.Departing():
            host.record(event.MemberDeparting(member, message.reason, message.within_s))
        case membership.CheckpointCommitted():
            _committed(host, message)
            launcher.show_ledger(message.round, host.ledger, host.clock.now())
        case membership.CheckpointsStored():
            _stored(host, message)
        case membership.RunDescribed():
            _described(host, message)
        case membership.Restored():
            if state.restored_step is None:
                restored = (message.step, message.skipped, message.tier, message.healed, message.follows)
                host.record(event.RestoreReported(message.round, *restored, message.until))
            else:
                # Said again after a reconnect. Taken as news it would set the job back to where the round began.
                host.tally.add(Count.DUPLICATE_MESSAGES)
        case Tested():
            found = (message.level, message.verdict, message.checks, message.says, message.links)
            host.record(event.MemberTested(member, message.number, *found))
        case WorkerOutput():
            _wrote(host, launcher, message)
        case StackTold():
            host.stacks.told(member, message)
        case ProfileTold():
            host.profiles.told(host.job.state.round, member, message)
        case ScalarsLogged():
            _logged(host, launcher, message)
        # Detectors fence these by themselves: what an exit says of its node holds whatever the round.
        case membership.WorkerExited():
            host.observe(detector.Exited(member, launcher.node, message))
        case membership.CollectiveFailed():
            host.observe(detector.CollectiveBroke(member, launcher.node, message))
        case membership.ProcessesSpawned():
            host.observe(detector.Spawned(member, launcher.node, message))


def _committed(host: JobHost, message: membership.CheckpointCommitted) -> None:
    known = host.job.state.checkpoints
    if message.wanted is None and any(each.round == message.round and each.step >= message.step for each in known):
        host.tally.add(Count.DUPLICATE_MESSAGES)  # within a round steps only grow: said again after a reconnect
        return
    # What is no length of time is Unknown: the interval between checkpoints follows from it.
    stall_s, took_s = (
        seconds if seconds is not None and math.isfinite(seconds) and seconds >= 0.0 else None
        for seconds in (message.stall_s, message.took_s)
    )
    host.record(
        event.CheckpointRecorded(message.round, message.step, message.uri, message.wanted, stall_s, took_s)
    )


def _stored(host: JobHost, message: membership.CheckpointsStored) -> None:
    state, newest_first = host.job.state, message.checkpoints[:TOLD_MAX]
    newest = state.checkpoints[-1] if state.checkpoints else None
    if newest is not None and newest.round == message.round and newest.step > (message.saved or 0):
        host.tally.add(Count.DUPLICATE_MESSAGES)  # said before that commit, and again after a reconnect
        return
    known = state.storage
    count = max(len(newest_first), message.count)
    told = (message.round, count, newest_first)
    if known is not None and (known.round, known.count, known.checkpoints[::-1]) == told:
        return  # nothing went, and nothing came that a commit did not tell
    host.record(event.StorageListed(message.round, message.uri, count, newest_first))


def _described(host: JobHost, message: membership.RunDescribed) -> None:
    unnumbered = msgspec.structs.replace(message.manifest, round=0)
    digest = hashlib.blake2b(runmanifest.encode(unnumbered), digest_size=16).hexdigest()
    if digest == host.job.state.described:
        host.tally.add(Count.DUPLICATE_MESSAGES)  # as in the round before, or said again after a reconnect
        return
    host.record(event.RunRecorded(message.round, digest, message.manifest))


def _wrote(host: JobHost, launcher: LauncherConnection, message: WorkerOutput) -> None:
    """Kept whatever the round: nothing is decided by it. What nobody could read, or is too long, is no message."""
    if len(message.tail) > TAIL_BYTES_MAX:
        raise BadMessage(f"tail: {len(message.tail)} bytes are not accepted; send {TAIL_BYTES_MAX} at most")
    if len(message.ended_with) > ENDED_WITH_MAX:
        raise BadMessage(f"ended_with: give {ENDED_WITH_MAX} characters at most")
    # Not a number fails it too.
    if not (0.0 <= message.started_at < YEAR_10000_S and 0.0 <= message.ended_at < YEAR_10000_S):
        raise BadMessage("started_at, ended_at: give seconds since 1970")
    host.outputs.keep(host.job.name, member=launcher.member, node=launcher.node, output=message)


def _logged(host: JobHost, launcher: LauncherConnection, message: ScalarsLogged) -> None:
    """Kept where it is published; also the rest of an older round, whose ranks may be others' by now."""
    state, policy = host.job.state, host.job.state.policy
    newest = state.round
    if policy is None or policy.reporting is None or newest is None:
        return
    share = newest.share_of(launcher.member)
    own = share is not None and share.first_rank <= message.rank < share.first_rank + share.local_size
    is_of_round = message.round < newest.number or (message.round == newest.number and own)
    if not is_of_round or message.rank >= policy.reporting.ranks:
        host.tally.add(Count.FENCED_MESSAGES)
        return
    host.scalars.keep(host.job.name, message, host.clock.now())


# Agents: node reports in, the pace and what was taken out.


async def serve_agent(request: web.Request) -> web.StreamResponse:
    """One agent's connection, from its `AgentHello` to its end."""
    return await serve(request, request.app[WATCHDOG].tally, _talk_to_agent, REPORT_BYTES_MAX)


async def _talk_to_agent(request: web.Request, socket: Socket, outbox: Outbox) -> None:
    hello = await first(socket, AGENT_MESSAGES)
    if not isinstance(hello, AgentHello):
        raise BadMessage("the first message must be AgentHello")
    identity.check_peer(node=hello.node, boot=hello.boot)
    identity.check_speaks_for(request[CALLER], hello.node)
    try:
        host = request.app[WATCHDOG].brought(hello.job)
        identity.check_room(len(host.taken))
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
        await listen(socket, AGENT_MESSAGES, partial(_take_from_agent, host, agent))
    finally:
        if host.agents.get(agent.node) is agent:
            del host.agents[agent.node]


def _take_from_agent(host: JobHost, agent: AgentConnection, report: FromAgent) -> None:
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
        host.take_report(identity.credible(report, host.job.state.round))
        if not report.events:
            return  # nobody keeps what only tells of the present; answering it would double the traffic
    agent.show(Slot.TAKEN, ReportTaken(host.taken[agent.node].sequence))


# The operator: what it sees of nodes and pods in, the plan out.


async def serve_operator(request: web.Request) -> web.StreamResponse:
    """One operator's connection, from its `OperatorHello` to its end."""
    return await serve(request, request.app[WATCHDOG].tally, _talk_to_operator, FRAME_BYTES_MAX)


async def _talk_to_operator(request: web.Request, socket: Socket, outbox: Outbox) -> None:
    hello = await first(socket, OPERATOR_MESSAGES)
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
        await listen(socket, OPERATOR_MESSAGES, partial(_take_from_operator, host))
    finally:
        host.operators.discard(operator)


def _take_from_operator(host: JobHost, message: FromOperator) -> None:
    match message:
        case NodeObserved():
            if message.rack:
                host.observe(detector.Placed(message.node, message.rack))
            if message.conditions or message.node in host.job.noted:  # nothing, of whom nothing was said: no news
                host.observe(detector.NodeNoted(message.node, message.conditions))
            holding = tuple(each.cause for each in message.conditions)
            told = (
                message.node,
                message.state,
                message.reason,
                message.rack,
                message.offer,
                holding,
                message.remediated,
                message.places,
            )
            host.see(event.NodeChanged(*told))
        case PodObserved():
            host.pods.see(message)
            host.see(event.PodChanged(message.member, message.node, message.state, message.reason, message.end))
        case OperatorHello():
            raise BadMessage("OperatorHello was said before")
