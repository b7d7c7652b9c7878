"""Nodes that the job keeps away from, and nodes it takes back."""

from holdfast.api.plan import NodeOrder
from holdfast.watchdog.state import JobState
from holdfast.watchdog.step import changed

# What all jobs keep away from is a twentieth of the nodes at most.
KEPT = 4096
KEPT_TIMES = 1024  # of evictions, for the budget


def avoid(state: JobState, order: NodeOrder, now: float) -> JobState:
    """Keep away from a node from now on; it counts against the eviction budget."""
    return changed(
        keep_away(state, order),
        evictions=(*state.evictions, now)[-KEPT_TIMES:],
        eviction_count=state.eviction_count + 1,
    )


def keep_away(state: JobState, order: NodeOrder) -> JobState:
    """Give the node no ranks until somebody takes it back, whatever was thought of it before."""
    others = tuple(each for each in state.avoided if each.node != order.node)
    returned = tuple(node for node in state.returned if node != order.node)
    probation = {node: each for node, each in state.probation.items() if node != order.node}
    return changed(
        state,
        avoided=(*others, order),
        returned=returned,
        probation=probation,
        reputed=tuple(node for node in state.reputed if node != order.node),
    )


def avoid_reputed(state: JobState, order: NodeOrder) -> JobState:
    """Keep away from a node for what other jobs know of it; that is no eviction of this job's."""
    others = tuple(each for each in state.avoided if each.node != order.node)
    reputed = (*state.reputed, order.node)
    return changed(state, avoided=(*others, order), reputed=reputed[-KEPT:])


def evict_no_more(state: JobState, incident: str) -> JobState:
    """Put back into service what one incident took out; what else was held against its nodes stands."""
    nodes = [order.node for order in state.avoided if order.incident == incident]
    return changed(
        state,
        avoided=tuple(order for order in state.avoided if order.node not in nodes),
        returned=tuple(dict.fromkeys((*state.returned, *nodes))),
    )


def take_back(state: JobState, nodes: tuple[str, ...]) -> JobState:
    """Put nodes back into service and forget what was held against them."""
    return changed(
        state,
        avoided=tuple(order for order in state.avoided if order.node not in nodes),
        reputed=tuple(node for node in state.reputed if node not in nodes),
        returned=tuple(dict.fromkeys((*state.returned, *nodes))),
        departed=tuple(node for node in state.departed if node not in nodes),
        suspicions=tuple(each for each in state.suspicions if each.node not in nodes),
    )
