"""This machine as a cluster: makes the local nodes match the plan, and reports what becomes of them.

What to start and to stop (`decide`) is pure and level-triggered: nothing is remembered but what is observed, so
that the same call after a restart decides the same. A node that went down, or that the plan avoids, is replaced by
a node of a new name, as a cluster replaces a machine.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from holdfast.api.errors import Unavailable
from holdfast.api.plan import NodeObserved, NodeState, Plan
from holdfast.cli.embedded.childprocess import exit_text
from holdfast.cli.embedded.localnode import LocalNode, NodeOptions, Relay, stop_all
from holdfast.cli.embedded.planfollower import PlanFollower

EARLY_EXIT_S: Final = 10.0  # a launcher that fails within this never did any work
EARLY_EXITS_MAX: Final = 3  # in a row; then starting more of them helps nobody
AGENT_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """How this machine plays a cluster: whether new machines can be had, and how long one takes to come."""

    replaces: bool = True
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
    kept_away = {order.node: order.reason for order in (*plan.avoid, *plan.cordon)}
    released = set(plan.release).difference(kept_away)
    wanted = plan.members + plan.spares
    stops = [Stop(name, kept_away[name], returnable=True) for name in observed.up if name in kept_away]
    stops += [Stop(name, "its ranks went elsewhere") for name in observed.up if name in released]
    kept = [name for name in observed.up if name not in kept_away and name not in released]
    stops += [Stop(name, f"the plan wants {wanted} nodes") for name in reversed(kept[wanted:])]  # the youngest
    if stops:
        # What replaces them is decided on the next look, when they are seen to be down.
        return Decision(tuple(stops), next_wakeup=now)

    missing = wanted - len(observed.up)
    if missing <= 0:
        return Decision()
    # Nodes that were given back go before new ones.
    gone = dict.fromkeys((*observed.evicted, *(name for name, _ in observed.down)))
    returned = [name for name in gone if name in plan.returned and name not in kept_away][:missing]
    waiting = [(name, since) for name, since in observed.down if name not in returned]
    # Then nodes that stand in for nobody: at the beginning, or when the plan grew.
    numbered = (f"node-{number}" for number in itertools.count(observed.highest + 1))
    new_names = (name for name in numbered if name not in kept_away)
    alone = max(0, missing - len(returned) - len(waiting))
    starts = [Start(name, name) for name in returned]
    starts += [Start(name) for name in itertools.islice(new_names, alone)]
    if not options.replaces:
        return Decision(tuple(starts))
    due = [name for name, since in waiting if since + options.delay_s <= now][: missing - len(starts)]
    starts += [Start(next(new_names), name) for name in due]
    later = [since + options.delay_s for _, since in waiting if since + options.delay_s > now]
    return Decision(tuple(starts), next_wakeup=min(later, default=None))


class LocalCluster(PlanFollower):
    """The operator of one machine.

    `up` are the nodes that are up by name, `started` the names of those that ever were.
    """

    def __init__(self, node_options: NodeOptions, options: PlacementOptions, say: Callable[[str], None]) -> None:
        super().__init__(node_options.prepared.job.id)
        self.up: dict[str, LocalNode] = {}
        self.started: set[str] = set()
        self._node_options = node_options
        self._options = options
        self._say = say
        self._over = False
        self._down: dict[str, float] = {}
        self._evicted: dict[str, None] = {}  # taken out of service; a human may return them
        self._relays: dict[str, Relay] = {}
        self._highest = 0
        self._early_exits = 0
        self._watchers: set[asyncio.Task[None]] = set()

    def announce_drain(self, name: str, reason: str) -> None:
        """Somebody wants the node empty, as `kubectl drain` does; it is stopped once the plan releases it."""
        self.outbox.put(NodeObserved(name, NodeState.DRAINING, reason))

    async def cut_off(self, name: str, seconds: float) -> None:
        """Let nothing pass between the node and the watchdog for so long. Raises Unavailable without a relay."""
        relay = self._relays.get(name)
        if relay is None:
            raise Unavailable(f"{name} was started without a relay, and cannot be cut off")
        await relay.cut(seconds)

    async def drain(self, within_s: float) -> None:
        """Let launchers end on their own, as they do when the job is over. None is started any more."""
        self._over = True
        ends = [node.launcher.ended for node in self.up.values()]
        if ends:
            await asyncio.wait(ends, timeout=within_s)

    async def stop(self) -> None:
        """End every node."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await stop_all(list(self.up.values()))
        for relay in self._relays.values():
            await relay.close()

    async def _match(self, plan: Plan, now: float) -> float | None:
        """Do what is to be done now; returns when to look again."""
        if self._over:
            return None
        observed = Observed(tuple(self.up), tuple(self._down.items()), self._highest, tuple(self._evicted))
        decision = decide(observed, plan, self._options, now)
        for action in decision.actions:
            if isinstance(action, Start):
                self._start(action.name, action.replaces)
                self._starts(action.name)
            elif (node := self.up.get(action.name)) is not None:
                self._say(f"{action.name} is taken out of service: {action.reason}")
                if action.returnable:
                    self._evicted[action.name] = None
                self._lose(node, action.reason, says_gone=not action.returnable)
                await stop_all([node])
        return decision.next_wakeup

    def _start(self, name: str, replaces: str | None) -> None:
        """Start a node. It stands in for `replaces`, which may be the same node, given back."""
        options = self._node_options
        if options.relayed:  # where it may be cut off, its way to the watchdog goes by a relay of its own
            relay = self._relays[name] = self._relays.get(name) or Relay(options.watchdog)
            options = replace(options, watchdog=relay.address)
        node = self.up[name] = LocalNode(name, options)
        if replaces is not None:
            self._down.pop(replaces, None)
        if replaces == name:
            self._evicted.pop(name, None)
            self._say(f"{name} is back")
        elif replaces is not None:
            self._say(f"{name} takes the place of {replaces}")
            if replaces in self._evicted:  # The machine was kept for as long as it might have been returned.
                self.outbox.put(NodeObserved(replaces, NodeState.GONE, f"{name} took its place"))
        self._highest = max(self._highest, int(name.rpartition("-")[2]))
        self.started.add(name)
        self.outbox.put(NodeObserved(name, NodeState.READY))
        for watch in (self._watch_launcher(node), self._watch_agent(node)):
            watcher = asyncio.create_task(watch)
            self._watchers.add(watcher)
            watcher.add_done_callback(self._watchers.discard)

    async def _watch_launcher(self, node: LocalNode) -> None:
        started_at = time.monotonic()
        code = await asyncio.shield(node.launcher.ended)
        await asyncio.to_thread(node.forget_memory)
        if self.up.get(node.name) is not node:
            return
        if code > 0 and time.monotonic() - started_at < EARLY_EXIT_S:
            self._early_exits += 1
            if self._early_exits >= EARLY_EXITS_MAX:
                words = node.launcher.last_line() or exit_text(code)
                self.trouble = Unavailable(f"launchers fail as soon as they start: {words}")
        else:
            self._early_exits, self.trouble = 0, None
        self._lose(node, f"its launcher ended with {exit_text(code)}")
        await node.agent.stop()

    async def _watch_agent(self, node: LocalNode) -> None:
        while self.up.get(node.name) is node:
            await asyncio.shield(node.agent.ended)
            # A launcher that dies at the same moment means that the node is gone, not the agent.
            await asyncio.sleep(AGENT_PAUSE_S)
            if self.up.get(node.name) is node:
                self._say(f"the agent of {node.name} ended; starting it again")
                node.start_agent()

    def _lose(self, node: LocalNode, reason: str, *, says_gone: bool = True) -> None:
        del self.up[node.name]
        self._down[node.name] = time.monotonic()
        if says_gone:
            self.outbox.put(NodeObserved(node.name, NodeState.GONE, reason))
        self.changed.set()
