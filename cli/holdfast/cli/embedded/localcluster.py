"""This machine as a cluster: makes the local nodes match the plan, and reports what becomes of them."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from holdfast.api.errors import Unavailable
from holdfast.api.plan import NodeObserved, NodeState, Plan
from holdfast.cli.embedded.childprocess import exit_text
from holdfast.cli.embedded.link import OperatorOutbox
from holdfast.cli.embedded.localnode import LocalNode, NodeOptions, stop_all
from holdfast.cli.embedded.placement import Observed, PlacementOptions, Start, Stop, decide
from holdfast.cli.embedded.relay import Relay

EARLY_EXIT_S: Final = 10.0  # a launcher that fails within this never did any work
EARLY_EXITS_MAX: Final = 3  # in a row; then starting more of them helps nobody
AGENT_PAUSE_S: Final = 1.0


class LocalCluster:
    """The operator of one machine. `show` takes a plan at any time; `run` keeps matching the newest."""

    def __init__(self, node_options: NodeOptions, options: PlacementOptions, say: Callable[[str], None]) -> None:
        self.outbox = OperatorOutbox()
        self._node_options = node_options
        self._options = options
        self._say = say
        self._plan: Plan | None = None
        self._over = False
        self._up: dict[str, LocalNode] = {}
        self._down: dict[str, float] = {}
        self._evicted: dict[str, None] = {}  # taken out of service; a human may return them
        self._relays: dict[str, Relay] = {}
        self._started_anew: set[str] = set()  # what the plan still releases is their earlier life
        self._started: set[str] = set()
        self._highest = 0
        self._early_exits = 0
        self._last_line = ""
        self._changed = asyncio.Event()
        self._watchers: set[asyncio.Task[None]] = set()

    def show(self, plan: Plan) -> None:
        """Take a plan; the newest is the one that counts."""
        self._plan = plan
        self._started_anew &= set(plan.release)
        self._changed.set()

    def node(self, name: str) -> LocalNode | None:
        """A node that is up."""
        return self._up.get(name)

    def names(self) -> tuple[str, ...]:
        """The nodes that are up."""
        return tuple(sorted(self._up))

    def ever_started(self) -> frozenset[str]:
        """The nodes that were ever up."""
        return frozenset(self._started)

    def announce_drain(self, name: str, reason: str) -> None:
        """Somebody wants the node empty, as `kubectl drain` does; it is stopped once the plan releases it."""
        self.outbox.put(NodeObserved(name, NodeState.DRAINING, reason))

    async def cut_off(self, name: str, seconds: float) -> None:
        """Let nothing pass between the node and the watchdog for so long. Raises Unavailable without a relay."""
        relay = self._relays.get(name)
        if relay is None:
            raise Unavailable(f"{name} was started without a relay, and cannot be cut off")
        await relay.cut(seconds)

    async def run(self) -> None:
        """Match the plan until cancelled. Raises Unavailable when nodes cannot be started at all."""
        while True:
            next_wakeup = await self._match(time.monotonic())
            delay_s = None if next_wakeup is None else next_wakeup - time.monotonic()
            # Not `wait_for`: with a time-out of zero it can take a cancellation for its own.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._changed.wait()
            self._changed.clear()
            if self._early_exits >= EARLY_EXITS_MAX:
                raise Unavailable(f"launchers fail as soon as they start: {self._last_line}")

    async def drain(self, within_s: float) -> None:
        """Let launchers end on their own, as they do when the job is over. None is started any more."""
        self._over = True
        ends = [node.launcher.ended for node in self._up.values()]
        if ends:
            await asyncio.wait(ends, timeout=within_s)

    async def stop(self) -> None:
        """End every node."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await stop_all(list(self._up.values()))
        for relay in self._relays.values():
            await relay.close()

    async def _match(self, now: float) -> float | None:
        if self._plan is None or self._over:
            return None
        observed = Observed(tuple(self._up), tuple(self._down.items()), self._highest, tuple(self._evicted))
        release = tuple(name for name in self._plan.release if name not in self._started_anew)
        decision = decide(observed, msgspec.structs.replace(self._plan, release=release), self._options, now)
        for action in decision.actions:
            match action:
                case Start():
                    self._start(action)
                case Stop():
                    await self._stop(action)
        return decision.next_wakeup

    def _start(self, action: Start) -> None:
        node = LocalNode(action.name, self._options_of(action.name))
        if action.replaces is not None:
            self._replace(action.name, action.replaces)
        self._highest = max(self._highest, int(action.name.rpartition("-")[2]))
        self._up[action.name] = node
        self._started.add(action.name)
        if self._plan is not None and action.name in self._plan.release:
            self._started_anew.add(action.name)
        self.outbox.put(NodeObserved(action.name, NodeState.READY))
        for watch in (self._watch_launcher(node), self._watch_agent(node)):
            watcher = asyncio.create_task(watch)
            self._watchers.add(watcher)
            watcher.add_done_callback(self._watchers.discard)

    def _options_of(self, name: str) -> NodeOptions:
        """What the node is started with: where it may be cut off, its way to the watchdog goes by a relay."""
        if not self._node_options.relayed:
            return self._node_options
        relay = self._relays.get(name)
        if relay is None:
            relay = self._relays[name] = Relay(self._node_options.watchdog)
        return replace(self._node_options, watchdog=relay.address)

    def _replace(self, name: str, gone: str) -> None:
        """`name` stands in for `gone`, which may be the same node, given back."""
        self._down.pop(gone, None)
        if name == gone:
            self._evicted.pop(name, None)
            self._say(f"{name} is back")
            return
        self._say(f"{name} takes the place of {gone}")
        if gone in self._evicted:  # The machine was kept for as long as it might have been returned.
            self.outbox.put(NodeObserved(gone, NodeState.GONE, f"{name} took its place"))

    async def _stop(self, action: Stop) -> None:
        node = self._up.get(action.name)
        if node is None:
            return
        self._say(f"{action.name} is taken out of service: {action.reason}")
        if action.returnable:
            self._evicted[action.name] = None
        self._lose(node, action.reason, says_gone=not action.returnable)
        await stop_all([node])

    async def _watch_launcher(self, node: LocalNode) -> None:
        started_at = time.monotonic()
        code = await asyncio.shield(node.launcher.ended)
        await asyncio.to_thread(node.forget_memory)
        if self._up.get(node.name) is not node:
            return
        if code > 0 and time.monotonic() - started_at < EARLY_EXIT_S:
            self._early_exits += 1
            self._last_line = node.launcher.last_line() or exit_text(code)
        else:
            self._early_exits = 0
        self._lose(node, f"its launcher ended with {exit_text(code)}")
        await node.agent.stop()

    async def _watch_agent(self, node: LocalNode) -> None:
        while self._up.get(node.name) is node:
            await asyncio.shield(node.agent.ended)
            # A launcher that dies at the same moment means that the node is gone, not the agent.
            await asyncio.sleep(AGENT_PAUSE_S)
            if self._up.get(node.name) is node:
                self._say(f"the agent of {node.name} ended; starting it again")
                node.restart_agent()

    def _lose(self, node: LocalNode, reason: str, *, says_gone: bool = True) -> None:
        del self._up[node.name]
        self._down[node.name] = time.monotonic()
        if says_gone:
            self.outbox.put(NodeObserved(node.name, NodeState.GONE, reason))
        self._changed.set()
