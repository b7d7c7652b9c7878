"""What one connection is still to be shown: the newest of each thing, so that a slow reader delays nobody."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum


class Slot(Enum):
    """The things a connection can be shown. A newer one takes the place of an older one not yet sent."""

    DESIRED = "desired"
    PLAN = "plan"
    PACE = "pace"
    TAKEN = "taken"


@dataclass(frozen=True)
class Farewell:
    """How a connection is ended: a WebSocket close code and words for a human."""

    code: int
    reason: str


class Outbox:
    """Filled without waiting, emptied by its own task: memory is bounded by one frame per slot."""

    def __init__(self) -> None:
        self._frames: dict[Slot, bytes] = {}
        self._filled = asyncio.Event()
        self._last_word: Farewell | None = None

    def put(self, slot: Slot, frame: bytes) -> None:
        """Show this instead of whatever was in the slot."""
        self._frames.pop(slot, None)  # the newest goes to the end: slots are sent in the order they were filled
        self._frames[slot] = frame
        self._filled.set()

    def finish(self, farewell: Farewell) -> None:
        """Let the connection end once everything is sent."""
        self._last_word = farewell
        self._filled.set()

    async def drain(self, send: Callable[[bytes], Awaitable[None]]) -> Farewell:
        """Send until `finish`, and return the farewell. Raises what `send` raises: the connection is gone."""
        while self._last_word is None or self._frames:
            await self._filled.wait()
            while self._frames:
                slot = next(iter(self._frames))
                await send(self._frames.pop(slot))
            self._filled.clear()
        return self._last_word
