"""What cordoning changes of a node, as a merge patch of the node as it is. Pure.

Taints are a list, which a merge patch replaces whole: the patch carries the version it was made from, so that it
fails when anybody changed the node meanwhile, and every taint that is not ours just as it was read.
"""

from typing import Any

import msgspec

from holdfast.api.cordon import CORDON_TAINT, CORDONED_BY, CordonedBy, read_cordoned_by

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
