"""Who a peer may be, and for whom it speaks. Names on the wire are bounded, printable and fit for a path."""

import re
from typing import Final

import msgspec
from aiohttp import WSCloseCode

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.membership import Join
from holdfast.api.round import Round
from holdfast.api.telemetry import (
    NodeEvent,
    NodeReport,
    ParametersChanged,
    RankSample,
    Statement,
)
from holdfast.watchdog.access.auth import Caller
from holdfast.watchdog.server.connection import BadMessage
from holdfast.watchdog.server.host import JobHost

# Kubernetes' names for a namespace and an object in it.
# Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
JOB = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
# Names of nodes and pods, and what people call processes of their own.
PEER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
# Twice the largest cluster planned for: what names that nobody uses can cost is bounded.
PEERS_MAX = 32_768
# A pod is bound to its node seconds before its launcher runs; an operator that just came tells of all pods first.
SEEN_WITHIN_S: Final = 5.0


def check_job(name: str) -> None:
    """Raises InvalidInput when `name` is not namespace/name."""
    if JOB.fullmatch(name) is None:
        fix = "name it namespace/name, in lower-case letters, digits and '-'"
        raise InvalidInput(Problem("job", name[:64], fix))


def check_allowed(caller: Caller, job: str) -> None:
    """Raises BadMessage when the caller may not send signals for the job."""
    if not caller.may_ingest_for(job):
        raise BadMessage(
            f"{caller.name} may send signals for jobs of namespace {caller.namespace} only, not {job}"
        )


def check_speaks_for(caller: Caller, node: str) -> None:
    """Raises BadMessage unless the caller may speak for that node: what it says can take the node away.

    The role ingest lets speak for nodes; a token that says on which node its pod runs, for that one alone.
    """
    if caller.namespace is not None:
        raise BadMessage(f"{caller.name} may not report for nodes: grant it the role ingest")
    if caller.node is not None and caller.node != node:
        raise BadMessage(f"node: {node} is not accepted; the token of {caller.name} is of a pod on {caller.node}")


def check_peer(**names: str) -> None:
    """Raises BadMessage naming the field whose value is no name."""
    for field, name in names.items():
        if PEER.fullmatch(name) is None:
            raise BadMessage(f"{field}: {name[:64]!r} is not accepted; use letters, digits, '.', '_' and '-'")


def check_room(known: int) -> None:
    """Raises BadMessage when no further peer is taken in."""
    if known >= PEERS_MAX:
        raise BadMessage(f"this job has {PEERS_MAX} peers already")


# Which member a launcher may be: the one that its pod is, on the node where the operator sees that pod.
#
# A pod's token is bound to the pod, so the API server says which pod it is; the operator says where it runs. What
# the launcher says of itself is compared with both. A job that no operator knows of has nobody who could say it.


class NotSeenYet(BadMessage):
    """Nobody has told of the pod; its launcher tries again."""

    code = WSCloseCode.TRY_AGAIN_LATER


async def check_identity(host: JobHost, caller: Caller, join: Join) -> None:
    """Raises BadMessage when the launcher is not the member, or not where, it says; NotSeenYet.

    Who was granted the role ingest, or shows a token of a file, is believed.
    """
    if caller.namespace is None or not host.is_submitted:
        return
    if caller.pod is None:
        raise BadMessage(f"the token of {caller.name} names no pod; give the launcher the token of its own pod")
    if join.member != caller.pod:
        raise BadMessage(f"member: {join.member} is not accepted; the token is of pod {caller.pod}")
    known = host.job.state.member(join.member)
    if known is not None and (known.node, known.boot) == (join.node, join.boot):
        return  # checked when it first joined; a watchdog that just started need not wait for the operator
    if host.pods.is_asked(join.member):
        # No pod has many launchers, and whoever waits counts as no member yet.
        raise NotSeenYet(f"another launcher of pod {join.member} waits to be told of already; trying again")
    node = await host.pods.node_of(join.member, join.node, SEEN_WITHIN_S)
    if node is None or (node != join.node and not host.operators):
        # What was seen before the operator went may be of an earlier pod of the name. A refusal would be for good.
        raise NotSeenYet(f"the operator has told nothing of pod {join.member} yet; trying again")
    if node != join.node:
        raise BadMessage(f"node: {join.node} is not accepted; pod {join.member} runs on {node}")


# Whose word counts about which rank: a pod speaks for the ranks of the member that it is, and for no others.
#
# An agent reads what pods leave in their own volumes, and passes it on with the name of the pod as the kubelet
# knows it. Any pod of a job's namespace may say that it is of that job; only a member of the round has ranks in
# it.


def credible(report: NodeReport, newest: Round | None) -> NodeReport:
    """The report without what pods say of ranks that are not theirs. What is of other rounds counts nowhere."""
    if newest is None:
        return report
    # Asked with every report, of which thousands come in a second: as a rule there is nothing to leave out.
    if not any(each.member and not _is_own(each, newest) for each in report.ranks) and not any(
        not _is_own(each, newest) for each in report.events
    ):
        return report
    return msgspec.structs.replace(
        report,
        ranks=tuple(each for each in report.ranks if _is_own(each, newest)),
        events=tuple(each for each in report.events if _is_own(each, newest)),
    )


def _is_own(said: RankSample | NodeEvent, newest: Round) -> bool:
    if not isinstance(said, RankSample | Statement | ParametersChanged):
        return True  # of the node: the agent's own word
    if not said.member or said.round != newest.number:
        return True
    share = newest.share_of(said.member)
    return share is not None and share.first_rank <= said.rank < share.first_rank + share.local_size
