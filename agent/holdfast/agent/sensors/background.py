"""A sensor's own task on the agent's event loop."""

import asyncio
from collections.abc import Callable, Coroutine


class Background:
    """Runs `work` from the first `start` on until `close`. `work` goes on for ever and does not raise."""

    def __init__(self, work: Callable[[], Coroutine[None, None, None]], *, name: str) -> None:
        self._work = work
        self._name = name
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, unless it has begun. Called on the event loop's thread."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work(), name=self._name)

    def close(self) -> None:
        """Cancel it; it ends when the event loop next runs."""
        if self._task is not None:
            self._task.cancel()
