"""Which member a launcher may be: the one that its pod is, on the node where the operator sees that pod.

A pod's token is bound to the pod, so the API server says which pod it is; the operator says where it runs. What
the launcher says of itself is compared with both. A job that no operator knows of has nobody who could say it.
"""

from typing import Final

from aiohttp import WSCloseCode

from holdfast.api.membership import Join
from holdfast.watchdog.auth import Caller
from holdfast.watchdog.server.frames import BadMessage
from holdfast.watchdog.server.host import JobHost

# A pod is bound to its node seconds before its launcher runs; an operator that just came tells of all pods first.
SEEN_WITHIN_S: Final = 5.0


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
