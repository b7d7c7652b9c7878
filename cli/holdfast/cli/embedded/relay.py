"""A node's way to the watchdog, which a drill can cut: both ends stay alive, and nothing passes between them.

As in a network that drops every packet, connections neither close nor fail: what is sent waits, and passes when
the way is open again, unless whoever waits for it has given up. Loopback only.
"""

import asyncio
import contextlib
import socket
from typing import Final

CHUNK_BYTES: Final = 1 << 16


class Relay:
    """Listens from the start; must be made in the event loop. `target` is HOST:PORT."""

    def __init__(self, target: str) -> None:
        """Raises OSError when no port can be had."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(0)
        self._open = asyncio.Event()
        self._open.set()
        self._conversations: set[asyncio.Task[None]] = set()
        self._serving = asyncio.create_task(self._serve())

    @property
    def address(self) -> str:
        """Where to connect to in place of the target."""
        host, port = self._listening.getsockname()
        return f"{host}:{port}"

    async def cut(self, seconds: float) -> None:
        """Let nothing pass for so long. Cancelled, it opens the way at once."""
        self._open.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._open.set()

    async def close(self) -> None:
        """End every conversation."""
        for task in (self._serving, *self._conversations):
            task.cancel()
        await asyncio.gather(self._serving, *self._conversations, return_exceptions=True)
        self._listening.close()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            caller, _ = await loop.sock_accept(self._listening)
            conversation = asyncio.create_task(self._converse(caller))
            self._conversations.add(conversation)
            conversation.add_done_callback(self._conversations.discard)

    async def _converse(self, caller: socket.socket) -> None:
        """Carry what both say, until either has no more to say."""
        with caller, contextlib.suppress(OSError):
            caller.settimeout(0)
            await self._open.wait()
            with socket.socket() as called:
                called.settimeout(0)
                await asyncio.get_running_loop().sock_connect(called, self._target)
                ways = [asyncio.create_task(self._carry(*way)) for way in ((caller, called), (called, caller))]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)

    async def _carry(self, source: socket.socket, target: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while said := await loop.sock_recv(source, CHUNK_BYTES):
            await self._open.wait()
            await loop.sock_sendall(target, said)
        await self._open.wait()  # An end is no more heard of than a word.
