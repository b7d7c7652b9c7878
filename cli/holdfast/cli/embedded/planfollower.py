"""An operator without Kubernetes: its line to the watchdog, and the loop that makes its nodes match the plan."""

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator

import msgspec

from holdfast.api.errors import Unavailable
from holdfast.api.plan import FromOperator, NodeObserved, OperatorHello, Plan, ToOperator


class OperatorOutbox:
    """What the operator has to say: the newest state of every node, again on each new connection."""

    def __init__(self) -> None:
        self._newest: dict[str, NodeObserved] = {}
        self._changed = asyncio.Event()

    def put(self, observed: NodeObserved) -> None:
        # Taken out first, so that the order is that of the changes.
        self._newest.pop(observed.node, None)
        self._newest[observed.node] = observed
        self._changed.set()

    async def follow(self) -> AsyncGenerator[NodeObserved, None]:
        """Everything known, then every change. One reader at a time."""
        told: dict[str, NodeObserved] = {}
        while True:
            self._changed.clear()
            for node, observed in list(self._newest.items()):
                if told.get(node) is not observed:
                    told[node] = observed
                    yield observed
            await self._changed.wait()


class PlanFollower(ABC):
    """Fills `Speaker`: it hears plans, and `run` keeps matching the newest. It must be made in the event loop.

    `plan` is the newest there is, `trouble` what `run` ends with; `changed` has it look again.
    """

    def __init__(self, job: str) -> None:
        self.plan: Plan | None = None
        self.trouble: Unavailable | None = None
        self.changed = asyncio.Event()
        self.outbox = OperatorOutbox()
        self._job = job
        self._started_anew: set[str] = set()  # what the plan still releases is their earlier life

    async def speech(self) -> AsyncGenerator[FromOperator, None]:
        yield OperatorHello(self._job)
        async with contextlib.aclosing(self.outbox.follow()) as changes:
            async for observed in changes:
                yield observed

    def hear(self, shown: ToOperator) -> None:
        """Take a plan; the newest is the one that counts. Reports are not read."""
        if isinstance(shown, Plan):
            self.plan = shown
            self._started_anew &= set(shown.release)
            self.changed.set()

    def lost(self) -> None:  # noqa: B027 - nothing follows from it
        """The plan stands until another one is shown."""

    async def run(self) -> None:
        """Match the plan until cancelled. Raises Unavailable when what it asks for cannot be started at all."""
        while True:
            plan = self.plan
            next_wakeup = None if plan is None else await self._match(self._less_started(plan), time.monotonic())
            delay_s = None if next_wakeup is None else next_wakeup - time.monotonic()
            # Not `wait_for`: with a time-out of zero it can take a cancellation for its own.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self.changed.wait()
            self.changed.clear()
            if self.trouble is not None:
                raise self.trouble

    @abstractmethod
    async def _match(self, plan: Plan, now: float) -> float | None:
        """Do what is to be done now; when to look again (None: when something changes)."""

    def _starts(self, name: str) -> None:
        """A node is started while the plan releases it: that was of its life before."""
        if self.plan is not None and name in self.plan.release:
            self._started_anew.add(name)

    def _less_started(self, plan: Plan) -> Plan:
        release = tuple(name for name in plan.release if name not in self._started_anew)
        return msgspec.structs.replace(plan, release=release)
