"""Keys that wait to be attended to: the namespaces take turns, so that one with thousands delays no other."""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class NamespaceQueue:
    """Of each namespace one key is in hand at a time, in the order of arrival: they may be about one job."""

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
