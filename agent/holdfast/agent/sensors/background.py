"""Sources that may be slow or hang: looked at on a thread of their own, or by a task of the event loop.

And what is read from a source is bounded.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import aiohttp

from holdfast.api.telemetry import Unreadable

_LOG = logging.getLogger(__name__)

T = TypeVar("T")
AGAIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Sight(Generic[T]):
    """What a look gave, and when it ended (CLOCK_MONOTONIC, seconds)."""

    seen: T
    at: float


class Polled(Generic[T]):
    """Calls `look` every `interval_s` and keeps what it gave last.

    The thread starts with the first question. A `look` may raise OSError or ValueError: the source cannot be
    read. Whatever else it raises counts the same, and is logged the first time of its kind. A look that has not
    returned for `patience_s` makes the source unreadable until it does; a thread that hangs in the kernel cannot
    be ended, so it is left behind when the agent ends.
    """

    def __init__(
        self,
        look: Callable[[], T],
        *,
        name: str,
        interval_s: float,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._name = name
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._clock = clock
        self._latest: tuple[Sight[T] | Unreadable, float] | None = None
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._began_at = 0.0
        self._logged: set[type[Exception]] = set()

    def latest(self, now: float) -> Sight[T] | Unreadable | None:
        """The last look, why there is none to trust, or None before the first one is over."""
        if self._thread is None:
            self._began_at = now
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        latest, since = self._latest or (None, self._began_at)
        if now - since > self._patience_s:
            return Unreadable(self._name, f"it has not answered for {now - since:.0f} s")
        return latest

    def close(self) -> None:
        """Ask the thread to end; it does after the look it is at."""
        self._ending.set()

    def _run(self) -> None:
        while not self._ending.is_set():
            found: Sight[T] | Unreadable
            try:
                found = Sight(self._look(), self._clock())
            except (OSError, ValueError) as error:
                found = Unreadable(self._name, getattr(error, "strerror", None) or str(error))
            except Exception as error:  # unforeseen; without this thread the source would be blind for ever
                if type(error) not in self._logged:
                    self._logged.add(type(error))
                    _LOG.exception("a source's look failed: source=%s", self._name)
                found = Unreadable(self._name, f"the look failed: {error!r}"[:200])
            self._latest = (found, self._clock())
            self._ending.wait(self._interval_s)


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


async def body_of(response: aiohttp.ClientResponse, bytes_max: int) -> str:
    """An answer's text. Raises ValueError for one that is too long, and what aiohttp raises."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(2**16):
        body += chunk
        if len(body) > bytes_max:
            raise ValueError(f"its answer is longer than {bytes_max} bytes")
    return body.decode("utf-8", "replace")


def kernel_value(*path: str) -> str:
    """What a file of sysfs holds; empty where there is none or it cannot be read."""
    try:
        with open(os.path.join(*path), encoding="ascii", errors="replace") as file:
            return file.read(256).strip()
    except OSError:
        return ""
