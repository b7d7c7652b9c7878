"""Writes what is handed on to others: the node's own condition of Holdfast, and the objects that ask for its
repair.
"""

import logging
from contextlib import suppress

from holdfast.operator.decide.action import AskForRemediation, ChangeRemediation, EndRemediation, SetNodeHealth
from holdfast.operator.decide.conditionmap import OURS
from holdfast.operator.kube.clusterview import ClusterView
from holdfast.operator.kube.objects import NODES, REMEDIATIONS
from holdfast.operator.kube.writes import Writes
from holdfast.wire.kube.reply import Absent, Conflicting

logger = logging.getLogger(__name__)


async def write_health(view: ClusterView, writes: Writes, health: SetNodeHealth, now: str) -> None:
    """Write the one condition, and no other. Raises as `Writes`; a node that is gone needs none."""
    condition = {
        "type": OURS,
        "status": health.status,
        "reason": health.reason,
        "message": health.message,
        "lastTransitionTime": health.since,
        "lastHeartbeatTime": now,
    }
    patch = {"status": {"conditions": [condition]}}
    with view.nodes.writing("", health.node) as flight, suppress(Absent):
        flight.landed(await writes.merge_by_key(NODES, ("", health.node), patch, "status"))
        logger.info("told the health of a node node=%s status=%s reason=%s", *_told(health))


async def carry_out(
    view: ClusterView, writes: Writes, action: AskForRemediation | ChangeRemediation | EndRemediation
) -> None:
    """Raises as `Writes`. Who comes second finds it done, or looks again at what others made of it."""
    cache = view.remediations
    match action:
        case AskForRemediation(manifest=manifest):
            name = manifest["metadata"]["name"]
            with cache.writing("", name) as flight, suppress(Conflicting):
                flight.landed(await writes.create(REMEDIATIONS, "", manifest))
                logger.info("asked for a remediation node=%s action=%s", name, manifest["spec"]["action"])
        case ChangeRemediation(name=name, uid=uid, version=version, change=change):
            conditional = {"metadata": {**change["metadata"], "uid": uid, "resourceVersion": version}}
            with cache.writing("", name) as flight, suppress(Absent):
                flight.landed(await writes.merge(REMEDIATIONS, ("", name), {**change, **conditional}))
        case EndRemediation(name=name, uid=uid):
            with cache.writing("", name) as flight, suppress(Absent, Conflicting):
                await writes.delete(REMEDIATIONS, ("", name), uid=uid)
                flight.deleted(uid)
                logger.info("ended a remediation node=%s", name)


def _told(health: SetNodeHealth) -> tuple[str, str, str]:
    return health.node, health.status, health.reason
