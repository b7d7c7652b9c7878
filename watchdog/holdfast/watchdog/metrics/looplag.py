"""How late the event loop is: what every launcher and agent waits for."""

import asyncio
from collections import deque
from typing import Final

EVERY_S: Final = 0.5
KEPT: Final = 60


class LoopLag:
    """The latest of the last `KEPT` wake-ups, which were to come every `EVERY_S` seconds."""

    def __init__(self) -> None:
        self._late_s: deque[float] = deque(maxlen=KEPT)

    @property
    def worst_s(self) -> float:
        """Zero before the first wake-up."""
        return max(self._late_s, default=0.0)

    async def follow(self) -> None:
        """Look for as long as it runs; ends by cancellation."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self._late_s.append(max(0.0, loop.time() - due))
