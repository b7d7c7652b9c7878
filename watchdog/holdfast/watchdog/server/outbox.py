"""What one connection is still to be shown: the newest of each thing, so that a slow reader delays nobody."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum


class Slot(Enum):
    """The things a connection can be shown. A newer one takes the place of an older one not yet sent."""

    DESIRED = "desired"
    PLAN = "plan"
    REPORT = "report"
    SAVE = "save"
    VERIFIED = "verified"
    TEST = "test"
    PACE = "pace"
    TAKEN = "taken"


@dataclass(frozen=True)
class Farewell:
    """How a connection is ended: a WebSocket close code and words for a human."""

    code: int
    reason: str


class Outbox:
    """Filled without waiting, emptied by its own task: memory is bounded by one frame per slot.

    `at_once` is asked first: it sends a frame at once and says so, or says that the peer is still busy with those
    before. Waking 12,500 tasks to show a round takes ten times as long as writing it.
    """

    def __init__(self, at_once: Callable[[bytes], bool] | None = None) -> None:
        self._at_once = at_once
        self._frames: dict[Slot, bytes] = {}
        self._filled = asyncio.Event()
        self._last_word: Farewell | None = None

    def put(self, slot: Slot, frame: bytes) -> None:
        """Show this instead of whatever was in the slot."""
        if not self._frames and self._at_once is not None and self._at_once(frame):
            return
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
