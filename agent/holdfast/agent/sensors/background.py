"""A sensor's own task on the agent's event loop."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Final

_LOG = logging.getLogger(__name__)
AGAIN_S: Final = 5.0


class Background:
    """Runs `work` from the first `start` on until `close`. `work` goes on for ever.

    Errors that `work` expects are its own to bear. One that it lets through is told to `failed` in words, logged
    the first time of its kind, and after `again_s` the work begins anew: no answer ends a source for good.
    """

    def __init__(
        self,
        work: Callable[[], Coroutine[None, None, None]],
        *,
        name: str,
        failed: Callable[[str], None],
        again_s: float = AGAIN_S,
    ) -> None:
        self._work = work
        self._name = name
        self._failed = failed
        self._again_s = again_s
        self._logged: set[type[Exception]] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, unless it has begun. Called on the event loop's thread."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    def close(self) -> None:
        """Cancel it; it ends when the event loop next runs."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            try:
                await self._work()
            except Exception as error:
                if type(error) not in self._logged:
                    self._logged.add(type(error))
                    _LOG.exception("a source's look failed: source=%s", self._name)
                self._failed(f"the look failed: {error!r}"[:200])
            await asyncio.sleep(self._again_s)
