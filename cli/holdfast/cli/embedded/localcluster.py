"""This machine as a cluster: makes the local nodes match the plan, and reports what becomes of them."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from holdfast.api.errors import Unavailable
from holdfast.api.plan import NodeObserved, NodeState, Plan
from holdfast.cli.embedded.link import OperatorOutbox
from holdfast.cli.embedded.localnode import LocalNode, NodeTerms, stop_all
from holdfast.cli.embedded.offspring import ending
from holdfast.cli.embedded.placement import Observed, Start, Stop, Terms, decide

STILLBORN_S: Final = 10.0  # a launcher that fails within this never did any work
STILLBORN_MAX: Final = 3  # in a row; then starting more of them helps nobody
AGENT_PAUSE_S: Final = 1.0


class LocalCluster:
    """The operator of one machine. `show` takes a plan at any time; `run` keeps matching the newest."""

    def __init__(self, node_terms: NodeTerms, terms: Terms, say: Callable[[str], None]) -> None:
        self.outbox = OperatorOutbox()
        self._node_terms = node_terms
        self._terms = terms
        self._say = say
        self._plan: Plan | None = None
        self._up: dict[str, LocalNode] = {}
        self._down: dict[str, float] = {}
        self._started: set[str] = set()
        self._highest = 0
        self._stillborn = 0
        self._last_words = ""
        self._changed = asyncio.Event()
        self._watchers: set[asyncio.Task[None]] = set()

    def show(self, plan: Plan) -> None:
        """Take a plan; the newest is the one that counts."""
        self._plan = plan
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

    async def run(self) -> None:
        """Match the plan until cancelled. Raises Unavailable when nodes cannot be started at all."""
        while True:
            look_again_at = await self._match(time.monotonic())
            delay_s = None if look_again_at is None else look_again_at - time.monotonic()
            # Not `wait_for`: with a time-out of zero it can take a cancellation for its own.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._changed.wait()
            self._changed.clear()
            if self._stillborn >= STILLBORN_MAX:
                raise Unavailable(f"launchers fail as soon as they start: {self._last_words}")

    async def drain(self, within_s: float) -> None:
        """Let launchers end on their own, as they do when the job is over."""
        ends = [node.launcher.ended for node in self._up.values()]
        if ends:
            await asyncio.wait(ends, timeout=within_s)

    async def stop(self) -> None:
        """End every node."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await stop_all(list(self._up.values()))

    async def _match(self, now: float) -> float | None:
        if self._plan is None:
            return None
        observed = Observed(tuple(self._up), tuple(self._down.items()), self._highest)
        decision = decide(observed, self._plan, self._terms, now)
        for action in decision.actions:
            match action:
                case Start():
                    self._start(action)
                case Stop():
                    await self._stop(action)
        return decision.look_again_at

    def _start(self, action: Start) -> None:
        node = LocalNode(action.name, self._node_terms)
        if action.replaces is not None:
            del self._down[action.replaces]
            self._say(f"{action.name} takes the place of {action.replaces}")
        self._highest = max(self._highest, int(action.name.rpartition("-")[2]))
        self._up[action.name] = node
        self._started.add(action.name)
        self.outbox.put(NodeObserved(action.name, NodeState.READY))
        for watch in (self._watch_launcher(node), self._watch_agent(node)):
            watcher = asyncio.create_task(watch)
            self._watchers.add(watcher)
            watcher.add_done_callback(self._watchers.discard)

    async def _stop(self, action: Stop) -> None:
        node = self._up.get(action.name)
        if node is None:
            return
        self._say(f"{action.name} is taken out of service: {action.reason}")
        self._lose(node, action.reason)
        await stop_all([node])

    async def _watch_launcher(self, node: LocalNode) -> None:
        started_at = time.monotonic()
        code = await asyncio.shield(node.launcher.ended)
        await asyncio.to_thread(node.forget_memory)
        if self._up.get(node.name) is not node:
            return
        if code > 0 and time.monotonic() - started_at < STILLBORN_S:
            self._stillborn += 1
            self._last_words = node.launcher.last_words() or ending(code)
        else:
            self._stillborn = 0
        self._lose(node, f"its launcher ended with {ending(code)}")
        await node.agent.stop()

    async def _watch_agent(self, node: LocalNode) -> None:
        while self._up.get(node.name) is node:
            await asyncio.shield(node.agent.ended)
            # A launcher that dies at the same moment means that the node is gone, not the agent.
            await asyncio.sleep(AGENT_PAUSE_S)
            if self._up.get(node.name) is node:
                self._say(f"the agent of {node.name} ended; starting it again")
                node.restart_agent()

    def _lose(self, node: LocalNode, reason: str) -> None:
        del self._up[node.name]
        self._down[node.name] = time.monotonic()
        self.outbox.put(NodeObserved(node.name, NodeState.GONE, reason))
        self._changed.set()
