"""Which local nodes to start and to stop so that this machine matches the plan. Pure and level-triggered.

A node that went down, or that the plan avoids, is replaced by a node of a new name, as a cluster replaces a
machine. Nothing is remembered but what is observed: the same call after a restart decides the same.
"""

import itertools
from dataclasses import dataclass
from enum import Enum

from holdfast.api.plan import Plan


class Replacing(Enum):
    """Whether new machines can be had."""

    ALLOWED = "allowed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """How this machine plays a cluster. `delay_s` is how long a new machine takes to come."""

    replacing: Replacing = Replacing.ALLOWED
    delay_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Observed:
    """The local nodes: those up, oldest first; those down and not yet replaced, with when they went down.

    `highest` is the highest number given to a node so far. `evicted` are nodes that were taken out of service and
    may be returned, the first one first.
    """

    up: tuple[str, ...] = ()
    down: tuple[tuple[str, float], ...] = ()
    highest: int = 0
    evicted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """Start a node of this name; `replaces` names the one it stands in for, which is then forgotten."""

    name: str
    replaces: str | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Take a node down. `returnable`: it is kept away from, until somebody returns it."""

    name: str
    reason: str
    returnable: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and when to look again (None: when something changes)."""

    actions: tuple[Start | Stop, ...] = ()
    next_wakeup: float | None = None


def decide(observed: Observed, plan: Plan, options: PlacementOptions, now: float) -> Decision:
    """What makes the machine match `plan`. A node stopped now shows as down in the next observation."""
    stops = _unwanted(observed, plan)
    if stops:
        # What replaces them is decided on the next look, when they are seen to be down.
        return Decision(tuple(stops), next_wakeup=now)
    missing = plan.members + plan.spares - len(observed.up)
    if missing <= 0:
        return Decision()
    starts = _returned(observed, plan)[:missing]
    started = {start.name for start in starts}
    waiting = [(name, since) for name, since in observed.down if name not in started]
    # Nodes that stand in for nobody: at the beginning, or when the plan grew.
    alone = max(0, missing - len(starts) - len(waiting))
    numbered = (f"node-{number}" for number in itertools.count(observed.highest + 1))
    new_names = (name for name in numbered if name not in {order.node for order in (*plan.avoid, *plan.cordon)})
    starts += [Start(name) for name in itertools.islice(new_names, alone)]
    if options.replacing is Replacing.REFUSED:
        return Decision(tuple(starts))
    due = [name for name, since in waiting if since + options.delay_s <= now]
    room = max(0, missing - len(starts))
    starts += [Start(next(new_names), replaces) for replaces in due[:room]]
    later = [since + options.delay_s for name, since in waiting if since + options.delay_s > now]
    return Decision(tuple(starts), next_wakeup=min(later, default=None))


def _unwanted(observed: Observed, plan: Plan) -> list[Stop]:
    """Nodes to keep away from, then the youngest beyond the number wanted."""
    orders = {order.node: order.reason for order in (*plan.avoid, *plan.cordon)}
    released = {name: "its ranks went elsewhere" for name in plan.release if name not in orders}
    stops = [Stop(name, orders[name], returnable=True) for name in observed.up if name in orders]
    stops += [Stop(name, released[name]) for name in observed.up if name in released]
    kept = [name for name in observed.up if name not in orders and name not in released]
    wanted = plan.members + plan.spares
    return stops + [Stop(name, f"the plan wants {wanted} nodes") for name in reversed(kept[wanted:])]


def _returned(observed: Observed, plan: Plan) -> list[Start]:
    """Nodes that were given back. They go before new ones."""
    names = dict.fromkeys((*observed.evicted, *(name for name, _ in observed.down)))
    kept_away = {order.node for order in (*plan.avoid, *plan.cordon)}
    return [Start(name, name) for name in names if name in plan.returned and name not in kept_away]
