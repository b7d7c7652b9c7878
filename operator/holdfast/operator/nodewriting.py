"""Nodes are written by many: a change is made of the node as it is at this moment, and made again when it lost."""

from collections.abc import Callable
from typing import Final

from holdfast.operator.clusterview import ClusterView
from holdfast.operator.nodepatch import Whole
from holdfast.operator.refusal import Absent, Conflicting
from holdfast.operator.resource import NODES
from holdfast.operator.writes import Writes

NODE_TRIES: Final = 5


async def patch_node(
    view: ClusterView, writes: Writes, name: str, patch_of: Callable[[Whole], Whole | None]
) -> None:
    """Change the node; `patch_of` None, or no such node: nothing is to be done. Raises as `Writes`."""
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
