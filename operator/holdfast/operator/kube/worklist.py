"""What is to be looked at, each once: keys that are due, never one in two hands."""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.wire.backoff import Backoff

RETRY_FIRST_S = 0.2
RETRY_MOST_S = 60.0
PAUSE_FACTOR = 3.0  # a look's own CPU time, this often: in a storm a job has a quarter of the core
NEWS_AFTER_FAILURE_S = 2.0  # news may mean that it would go well now; after a failure they wait this long at most
PAUSE_MOST_S = 1.0  # the longest that news waits for the next look


class Worklist:
    """Keys and when they are due. A key that is added while it is in hand is due again once it is put down.

    `clock` is monotonic seconds; `pause_s` is the least time from a look to the next one that news asks for, so
    that a storm of changes is answered with a few looks at all of it. `spent_s` is the CPU time that was used so
    far: a look that took much of it, at a large job, is followed by a longer pause, so that a storm leaves time
    for everything else.
    """

    def __init__(
        self, clock: Callable[[], float], *, pause_s: float = 0.05, spent_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._clock = clock
        self._pause_s = pause_s
        self._spent_s = spent_s
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._in_hand: dict[str, float] = {}  # the CPU time when it was taken
        self._not_before: dict[str, float] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._woken = asyncio.Event()

    def __len__(self) -> int:
        """Keys that are due now."""
        now = self._clock()
        return sum(1 for at in self._due.values() if at <= now)

    def add(self, key: str) -> None:
        """Look at `key` now, or as soon as its pause is over."""
        at = max(self._clock(), self._not_before.get(key, 0.0))
        if key in self._due and self._due[key] <= at:
            return
        self._due[key] = at
        if key not in self._in_hand:
            heapq.heappush(self._heap, (at, key))
            self._woken.set()

    async def take(self) -> str:
        """The next key that is due; put it down with `done`, `failed` or `drop`."""
        while True:
            now = self._clock()
            while self._heap and self._heap[0][0] <= now:
                at, key = heapq.heappop(self._heap)
                if key in self._in_hand or self._due.get(key) != at:
                    continue  # it was moved, or it is being looked at
                del self._due[key]
                self._in_hand[key] = self._spent_s()
                return key
            self._woken.clear()
            wait_s = max(0.0, self._heap[0][0] - self._clock()) if self._heap else None
            try:
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            except TimeoutError:
                continue

    def done(self, key: str, again_after_s: float) -> None:
        """It went well; look again after that time at the latest, which no pause puts off."""
        self._backoffs.pop(key, None)
        self._put_down(key, again_after_s)

    def failed(self, key: str) -> float:
        """It did not; look again after a growing pause, whose length is the answer.

        News shortens the pause, but not below `NEWS_AFTER_FAILURE_S`: each of thousands of pods makes some.
        """
        wait_s = self._backoffs.setdefault(key, Backoff(RETRY_FIRST_S, RETRY_MOST_S)).next_s()
        # What came in meanwhile does not shorten the pause: it would be a busy loop.
        self._due.pop(key, None)
        self._put_down(key, wait_s, min(wait_s, NEWS_AFTER_FAILURE_S))
        return wait_s

    def drop(self, key: str) -> None:
        """There is no such thing any more. It stays if somebody added it meanwhile."""
        self._backoffs.pop(key, None)
        self._in_hand.pop(key, None)
        self._not_before.pop(key, None)
        if key in self._due:
            heapq.heappush(self._heap, (self._due[key], key))
            self._woken.set()

    def _put_down(self, key: str, again_after_s: float, pause_s: float = 0.0) -> None:
        now_s = self._spent_s()
        looked_s = now_s - self._in_hand.pop(key, now_s)
        pause_s = max(pause_s, self._pause_s, min(PAUSE_FACTOR * looked_s, PAUSE_MOST_S))
        self._not_before[key] = self._clock() + pause_s
        news = max(self._due.get(key, float("inf")), self._not_before[key])
        self._due[key] = min(self._clock() + max(0.0, again_after_s), news)
        heapq.heappush(self._heap, (self._due[key], key))
        self._woken.set()


class NamespaceQueue:
    """Keys in hand whose namespaces take turns, so that one with thousands delays no other.

    Of each namespace one key is in hand at a time, in the order of arrival: they may be about one job.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[str]] = {}  # of a namespace that has its turn, too
        self._turns: asyncio.Queue[str] = asyncio.Queue()

    def put(self, key: str) -> None:
        """`key` is NAMESPACE/NAME."""
        namespace = key.partition("/")[0]
        if namespace not in self._waiting:
            self._waiting[namespace] = deque()
            self._turns.put_nowait(namespace)
        self._waiting[namespace].append(key)

    async def turn(self) -> str:
        """The namespace whose turn is next; give its turn back with `hand`."""
        return await self._turns.get()

    @contextmanager
    def hand(self, namespace: str) -> Iterator[str]:
        """The next key of `namespace`; afterwards the namespace queues up again with what is left."""
        try:
            yield self._waiting[namespace].popleft()
        finally:
            if self._waiting[namespace]:
                self._turns.put_nowait(namespace)
            else:
                del self._waiting[namespace]
