"""Launchers: membership messages in, the desired state out."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from aiohttp import WSCloseCode, web

from holdfast.api.bounds import NODES_MAX, PER_NODE_MAX
from holdfast.api.checkpoint import TOLD_MAX
from holdfast.api.errors import HoldfastError
from holdfast.api.event import (
    CheckpointRecorded,
    JobSubmitted,
    MemberDeparting,
    MemberEntered,
    MemberFinished,
    MemberJoined,
    MemberLeft,
    MemberTested,
    MemberWarmed,
    RestoreReported,
    RoundBegan,
    StorageListed,
)
from holdfast.api.membership import (
    CheckpointCommitted,
    CheckpointsStored,
    CollectiveFailed,
    Departing,
    FromLauncher,
    Join,
    Leave,
    Refused,
    Restored,
    RoundEntered,
    TrainingBegan,
    Warmed,
    WorkerExited,
    WorkersFinished,
)
from holdfast.api.policy import Policy
from holdfast.api.selftest import Tested
from holdfast.api.workeroutput import TAIL_BYTES_MAX, WorkerOutput
from holdfast.watchdog.detectors.detector import (
    CollectiveBroke,
    Connected,
    Disconnected,
    Exited,
    Finished,
    Heard,
    Left,
)
from holdfast.watchdog.metrics.counts import Count
from holdfast.watchdog.server.answer import CALLER
from holdfast.watchdog.server.connection import (
    BadMessage,
    Farewell,
    LauncherConnection,
    Outbox,
    Slot,
    first,
    listen,
    serve,
)
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.identity import NotSeenYet, check_allowed, check_identity, check_peer, check_room
from holdfast.watchdog.server.watchdog import WATCHDOG
from holdfast.watchdog.server.websocket import Socket
from holdfast.watchdog.settings import ClusterPolicy

# The longest messages carry the last lines of a worker's error, and the end of its output.
FRAME_BYTES_MAX = 64 * 1024
PORTS_MAX = 64
ENDED_WITH_MAX = 64
YEAR_10000_S = 253_402_300_800.0

MESSAGES: msgspec.msgpack.Decoder[FromLauncher] = msgspec.msgpack.Decoder(FromLauncher)


async def serve_launcher(request: web.Request) -> web.StreamResponse:
    """One launcher's connection, from its `Join` to its end."""
    return await serve(request, request.app[WATCHDOG].tally, _talk, FRAME_BYTES_MAX)


async def _talk(request: web.Request, socket: Socket, outbox: Outbox) -> None:
    join = await first(socket, MESSAGES)
    if not isinstance(join, Join):
        raise BadMessage("the first message must be Join")
    try:
        _check(join)
        check_allowed(request[CALLER], join.job)
        host = request.app[WATCHDOG].brought(join.job)
        check_room(len(host.launchers))
        await check_identity(host, request[CALLER], join)
    except NotSeenYet:
        raise
    except HoldfastError as error:
        await socket.send(msgspec.msgpack.encode(Refused(str(error))))
        raise BadMessage(str(error)) from error
    launcher = LauncherConnection(socket, outbox, member=join.member, node=join.node, boot=join.boot)
    _replace(host, launcher)
    _joined(host, launcher, join, request.app[WATCHDOG].cluster)
    try:
        await listen(socket, MESSAGES, partial(_take, host, launcher, Heard(launcher.member)))
    finally:
        _gone(host, launcher)


def _take(host: JobHost, launcher: LauncherConnection, heard: Heard, message: FromLauncher) -> None:
    if host.launchers.get(launcher.member) is not launcher:
        launcher.socket.stop()  # a newer connection of the member has taken over: this one counts no more
        return
    host.hear(heard)
    if isinstance(message, Leave):
        host.record(MemberLeft(launcher.member, message.reason))
        host.observe(Left(launcher.member))
        launcher.left = True
        launcher.outbox.finish(Farewell(WSCloseCode.OK, "it left"))
        launcher.socket.stop()
        return
    if isinstance(message, Join):
        raise BadMessage("Join was said before")
    take = TAKERS.get(type(message))
    if take is not None:
        take(host, launcher, message)


def _replace(host: JobHost, launcher: LauncherConnection) -> None:
    """Take the member's place. A launcher of another boot is told to go, or the two would fight for ever."""
    older = host.launchers.get(launcher.member)
    host.launchers[launcher.member] = launcher
    if older is None:
        return
    host.tally.add(Count.REPLACED_CONNECTIONS)
    reason = f"another launcher has joined as member {launcher.member}"
    if older.boot != launcher.boot:
        older.outbox.put(Slot.DESIRED, msgspec.msgpack.encode(Refused(reason)))
    older.outbox.finish(Farewell(WSCloseCode.POLICY_VIOLATION, reason))


def _joined(host: JobHost, launcher: LauncherConnection, join: Join, cluster: ClusterPolicy) -> None:
    if host.job.state.policy is None and join.nodes is not None:
        # Started by hand or by stock torchrun: the launcher's own range is all that anybody says of the job.
        policy = Policy(join.job, *join.nodes, processes_per_node=join.local_size)
        host.record(JobSubmitted(cluster.applied_to(policy)))
    if host.job.state.round is not None:
        # Before it has one it goes on from any number: launchers started by hand may be those of an earlier job.
        host.reached(join.shown, f"launcher {launcher.member}")
    host.observe(Connected(launcher.member, launcher.node))
    fields = {name: getattr(join, name) for name in MemberJoined.__struct_fields__ if name != "transfer"}
    transfer = f"{join.address}:{join.transfer_port}" if join.transfer_port else ""
    host.record(MemberJoined(**fields, transfer=transfer))
    host.show_desired(launcher)


def _gone(host: JobHost, launcher: LauncherConnection) -> None:
    """The connection ended; that is a fault unless it was meant, by either side."""
    if host.launchers.get(launcher.member) is not launcher:
        return
    del host.launchers[launcher.member]
    if not launcher.left and not host.closing:
        host.observe(Disconnected(launcher.member))


def _check(join: Join) -> None:
    """Raises BadMessage when the launcher cannot be a member, whatever the job."""
    check_peer(member=join.member, node=join.node, boot=join.boot)
    if not 1 <= join.local_size <= PER_NODE_MAX:
        raise BadMessage(f"local_size: {join.local_size} is not accepted; give 1 to {PER_NODE_MAX}")
    if join.nodes is not None and not 1 <= join.nodes[0] <= join.nodes[1] <= NODES_MAX:
        raise BadMessage(f"nodes: {join.nodes} is not accepted; give a range within 1 to {NODES_MAX}")
    if not 0 <= join.transfer_port <= 65535:
        raise BadMessage(f"transfer_port: {join.transfer_port} is not accepted; give a TCP port, or 0 for none")
    if not 1 <= len(join.ports) <= PORTS_MAX or not all(1 <= port <= 65535 for port in join.ports):
        raise BadMessage(f"ports: {join.ports[:4]} is not accepted; reserve 1 to {PORTS_MAX} TCP ports")


def _counts(host: JobHost, launcher: LauncherConnection, round_number: int) -> bool:
    """Whether the member has ranks in that round and the round is the newest. What is fenced is only counted."""
    newest = host.job.state.round
    if newest is not None and newest.number == round_number and newest.share_of(launcher.member) is not None:
        return True
    host.tally.add(Count.FENCED_MESSAGES)
    return False


def _entered(host: JobHost, launcher: LauncherConnection, message: RoundEntered) -> None:
    if _counts(host, launcher, message.round):
        host.record(
            MemberEntered(
                launcher.member,
                message.round,
                message.reentrant,
                message.last_step,
                message.reentry,
                message.because,
            )
        )


def _began(host: JobHost, launcher: LauncherConnection, message: TrainingBegan) -> None:
    """The first sign of a round counts; of a script that publishes its steps none is needed."""
    state = host.job.state
    if _counts(host, launcher, message.round) and state.signed_at is None and not state.publishes:
        host.record(RoundBegan(launcher.member, message.round))


def _finished(host: JobHost, launcher: LauncherConnection, message: WorkersFinished) -> None:
    if not _counts(host, launcher, message.round):
        return
    # What is found comes first: a round that ended with it is not a job that succeeded.
    host.observe(Finished(launcher.member, message.round, message.nonfinite))
    host.record(MemberFinished(launcher.member, message.round, message.last_step, message.nonfinite))


def _committed(host: JobHost, launcher: LauncherConnection, message: CheckpointCommitted) -> None:
    if not _counts(host, launcher, message.round):
        return
    known = host.job.state.checkpoints
    if message.wanted is None and any(each.round == message.round and each.step >= message.step for each in known):
        host.tally.add(Count.DUPLICATE_MESSAGES)  # within a round steps only grow: said again after a reconnect
        return
    stall_s, took_s = _cost(message.stall_s), _cost(message.took_s)
    host.record(CheckpointRecorded(message.round, message.step, message.uri, message.wanted, stall_s, took_s))


def _cost(seconds: float | None) -> float | None:
    """What is no length of time is Unknown: the interval between checkpoints follows from it."""
    return seconds if seconds is not None and math.isfinite(seconds) and seconds >= 0.0 else None


def _stored(host: JobHost, launcher: LauncherConnection, message: CheckpointsStored) -> None:
    if not _counts(host, launcher, message.round):
        return
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
    host.record(StorageListed(message.round, message.uri, count, newest_first))


def _restored(host: JobHost, launcher: LauncherConnection, message: Restored) -> None:
    # Every rank restores the same step; one report is enough.
    if message.rank != 0 or not _counts(host, launcher, message.round):
        return
    if host.job.state.restored_step is not None:
        # Said again after a reconnect. Taken as news it would set the job back to where the round began.
        host.tally.add(Count.DUPLICATE_MESSAGES)
        return
    host.record(RestoreReported(message.round, message.step, message.skipped, message.tier, message.healed))


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


# Beats say nothing but that the launcher lives, which every message does.
TAKERS: Mapping[type, Callable[[JobHost, LauncherConnection, Any], None]] = {
    Warmed: lambda host, launcher, message: host.record(MemberWarmed(launcher.member)),
    RoundEntered: _entered,
    TrainingBegan: _began,
    WorkersFinished: _finished,
    Departing: lambda host, launcher, message: host.record(
        MemberDeparting(launcher.member, message.reason, message.within_s)
    ),
    CheckpointCommitted: _committed,
    CheckpointsStored: _stored,
    Restored: _restored,
    WorkerOutput: _wrote,
    Tested: lambda host, launcher, message: host.record(
        MemberTested(launcher.member, message.number, message.level, message.verdict, message.checks, message.says)
    ),
    # Detectors fence these by themselves: what an exit says of its node holds whatever the round.
    WorkerExited: lambda host, launcher, message: host.observe(Exited(launcher.member, launcher.node, message)),
    CollectiveFailed: lambda host, launcher, message: host.observe(
        CollectiveBroke(launcher.member, launcher.node, message)
    ),
}
