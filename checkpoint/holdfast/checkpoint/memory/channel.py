"""Frames and bulk bytes over a socket, with a bound on every wait."""

import asyncio
import os
import socket
from collections.abc import Awaitable
from typing import TypeVar

import msgspec

from holdfast.checkpoint.memory import protocol
from holdfast.checkpoint.memory.protocol import Challenge, ProtocolError, Refused, Welcome

T = TypeVar("T")

PATIENCE_S = 10.0
"""A peer that takes or gives nothing for so long counts as gone. A node short of CPU is slower than a second."""

_CHUNK_BYTES = 4 << 20  # What is asked of the socket at once: with a quarter of it a copy costs a fifth more CPU.
_NONCE_BYTES = 32


class Channel:
    """One connection. Every method raises OSError (TimeoutError when nothing moves for `patience_s`)."""

    def __init__(self, connection: socket.socket, *, patience_s: float = PATIENCE_S) -> None:
        connection.settimeout(0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()

    async def say(self, message: msgspec.Struct) -> None:
        await self.send(memoryview(protocol.frame(message)))

    async def hear(self, decoder: msgspec.msgpack.Decoder[T], *, limit: int, idle_s: float = 0.0) -> T:
        """The next message. `idle_s`: how much longer than the patience its beginning may take."""
        length = memoryview(bytearray(protocol.LENGTH_BYTES))
        await self.receive(length, idle_s=idle_s)
        words = memoryview(bytearray(protocol.length_in(length, limit)))
        await self.receive(words)
        return protocol.message_in(decoder, words)

    async def send(self, content: memoryview) -> None:
        for start in range(0, content.nbytes, _CHUNK_BYTES):
            await self._bounded(self._loop.sock_sendall(self._socket, content[start : start + _CHUNK_BYTES]))

    async def receive(self, into: memoryview, *, idle_s: float = 0.0) -> None:
        """Fill `into`."""
        done = 0
        while done < into.nbytes:
            waiting = self._loop.sock_recv_into(self._socket, into[done : done + _CHUNK_BYTES])
            count = await self._bounded(waiting, idle_s if done == 0 else 0.0)
            if count == 0:
                raise ConnectionResetError("the other side has hung up")
            done += count

    def close(self) -> None:
        self._socket.close()

    async def _bounded(self, waiting: Awaitable[T], idle_s: float = 0.0) -> T:
        async with asyncio.timeout(self._patience_s + idle_s):
            return await waiting


async def welcome(channel: Channel, key: str) -> None:
    """The server's side of the greeting. Raises OSError when the caller does not know the key."""
    nonce = os.urandom(_NONCE_BYTES)
    await channel.say(Challenge(version=protocol.VERSION, nonce=nonce))
    hello = await channel.hear(protocol.HELLOS, limit=protocol.GREETING_BYTES_MAX)
    if not protocol.is_proof(hello.proof, key, nonce):
        await channel.say(Refused("the key of the job is not this one"))
        raise ProtocolError("a caller does not know the key")
    await channel.say(Welcome())


async def call(address: str, key: str, *, patience_s: float = PATIENCE_S) -> Channel:
    """A greeted connection to a transfer server. Raises OSError when there is none or it does not want us."""
    try:
        host, port = protocol.parse_address(address)
    except ValueError as error:
        raise ProtocolError(str(error)) from error
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(patience_s):
        family, kind, number, _, where = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
        connection = socket.socket(family, kind, number)
        try:
            connection.settimeout(0)
            await loop.sock_connect(connection, where)
        except BaseException:
            connection.close()
            raise
    channel = Channel(connection, patience_s=patience_s)
    try:
        challenge = await channel.hear(protocol.GREETINGS, limit=protocol.GREETING_BYTES_MAX)
        await channel.say(protocol.hello_to(challenge, key))
        protocol.require_welcome(await channel.hear(protocol.GREETINGS, limit=protocol.GREETING_BYTES_MAX))
    except BaseException:
        channel.close()
        raise
    return channel
