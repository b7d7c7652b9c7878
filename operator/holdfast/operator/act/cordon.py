"""What cordoning changes of a node, as a merge patch of the node as it is, and how that is written.

Taints are a list, which a merge patch replaces whole: the patch carries the version it was made from, so that it
fails when anybody changed the node meanwhile, and every taint that is not ours just as it was read.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.api.cordon import CORDON_TAINT, CORDONED_BY, CordonedBy, read_cordoned_by
from holdfast.operator.kube.clusterview import ClusterView
from holdfast.operator.kube.objects import NODES
from holdfast.operator.kube.writes import Writes
from holdfast.wire.kube.reply import Absent, Conflicting

NODE_TRIES: Final = 5

Whole = dict[str, Any]


def cordoned(node: Whole, by: CordonedBy) -> Whole | None:
    """The patch that takes it out of service; None when it is out already, by this job or another."""
    taints = _taints(node)
    if any(each.get("key") == CORDON_TAINT for each in taints):
        return None
    ours = {"key": CORDON_TAINT, "value": "true", "effect": "NoSchedule"}
    return _patch(node, [*taints, ours], msgspec.json.encode(by).decode())


def uncordoned(node: Whole, job: str) -> Whole | None:
    """The patch that puts it back; None when it is not `job` that took it out."""
    by = read_cordoned_by(node["metadata"].get("annotations", {}).get(CORDONED_BY))
    if by is None or by.job != job:
        return None
    return _patch(node, [each for each in _taints(node) if each.get("key") != CORDON_TAINT], None)


def _taints(node: Whole) -> list[Whole]:
    taints: list[Whole] = node.get("spec", {}).get("taints") or []
    return taints


def _patch(node: Whole, taints: list[Whole], annotation: str | None) -> Whole:
    return {
        "metadata": {
            "resourceVersion": node["metadata"]["resourceVersion"],
            "annotations": {CORDONED_BY: annotation},
        },
        "spec": {"taints": taints},
    }


async def patch_node(
    view: ClusterView, writes: Writes, name: str, patch_of: Callable[[Whole], Whole | None]
) -> None:
    """Change the node as it is at this moment, and again when another write was first: many write nodes.

    `patch_of` None, or no such node: nothing is to be done. Raises as `Writes`.
    """
    for attempt in range(1, NODE_TRIES + 1):
        try:
            patch = patch_of(await writes.read(NODES, ("", name)))
            if patch is None:
                return
            with view.nodes.writing("", name) as flight:
                flight.landed(await writes.merge(NODES, ("", name), patch))
            return
        except Absent:
            return  # a node that is gone needs neither
        except Conflicting:
            if attempt == NODE_TRIES:
                raise
