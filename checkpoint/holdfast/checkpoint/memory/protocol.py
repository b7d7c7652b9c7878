"""What transfer servers and workers say to each other over TCP.

A frame is a four-byte little-endian length and that many bytes of msgpack. The server speaks first (`Challenge`);
nothing but `Hello` is heard before the caller has proved that it knows the job's key, which itself is never sent.
Then the caller asks and the server answers, one question at a time. `Content` is followed by that many raw bytes.
`Put` is answered by `Ready`; then the image's bytes follow, and `Sealed` with the hashes of their blocks, which is
answered by `Kept`. Anything may be answered by `Refused`.
"""

import asyncio
import hmac
import os
import socket
from collections.abc import Awaitable
from typing import Final, TypeVar

import msgspec

from holdfast.api.decoding import decode
from holdfast.api.errors import Malformed
from holdfast.checkpoint.memory.record import SnapshotRecord
from holdfast.wire import frame as framing

T = TypeVar("T")

VERSION: Final = 1
LENGTH_BYTES: Final = 4
GREETING_BYTES_MAX: Final = 1 << 10
REQUEST_BYTES_MAX: Final = 64 << 20  # A record of 300,000 tensors, or the hashes of an image of 8 TiB.
ANSWER_BYTES_MAX: Final = 192 << 20
READ_BYTES_MAX: Final = 256 << 20
FRAME_BYTES_MAX: Final = (1 << 8 * LENGTH_BYTES) - 1  # Whoever hears it has a limit of its own.

PATIENCE_S = 10.0
"""A peer that takes or gives nothing for so long counts as gone. A node short of CPU is slower than a second."""

_CHUNK_BYTES = 4 << 20  # What is asked of the socket at once: with a quarter of it a copy costs a fifth more CPU.
_NONCE_BYTES = 32


class ProtocolError(ConnectionError):
    """The other side said what makes no sense here, or refused."""


class Challenge(msgspec.Struct, frozen=True, tag=True):
    """`nonce` is to be signed with the key."""

    version: int
    nonce: bytes


class Hello(msgspec.Struct, frozen=True, tag=True):
    proof: bytes


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The proof was right."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """No, and why."""

    reason: str


class Item(msgspec.Struct, frozen=True, array_like=True):
    """One complete snapshot on a node, `is_copy` when it is of another node's rank. `parent` and `healthy` as in
    the record.
    """

    round: int
    step: int
    rank: int
    world_size: int
    image_bytes: int
    is_copy: bool
    is_sealed: bool
    copies: int
    parent: int | None
    healthy: bool | None = None


class Which(msgspec.Struct, frozen=True, array_like=True):
    """One rank's snapshot of one step of one round."""

    rank: int
    round: int
    step: int


class Read(msgspec.Struct, frozen=True, tag=True):
    """Bytes of an image; the image's end cuts them short. Answered by `Content`."""

    which: Which
    offset: int
    length_bytes: int


class Block(msgspec.Struct, frozen=True, tag=True):
    """A block of whatever image, by its hash. Answered by `Content`."""

    hash: str


class Content(msgspec.Struct, frozen=True, tag=True):
    """So many bytes follow."""

    length_bytes: int


class Put(msgspec.Struct, frozen=True, tag=True):
    """Keep a copy of this. Answered by `Ready`, or by `Kept` when it is there already."""

    record: SnapshotRecord


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Send the image."""


class Sealed(msgspec.Struct, frozen=True, tag=True):
    """What the sender read: the hashes of the image's blocks."""

    blocks: tuple[str, ...]


class Kept(msgspec.Struct, frozen=True, tag=True):
    """The copy is whole, verified, and counts."""


Question = Read | Block | Put
Answer = Content | Ready | Kept | Refused

Greeting = Challenge | Welcome | Refused

HELLOS: Final = msgspec.msgpack.Decoder(Hello)
QUESTIONS: Final = msgspec.msgpack.Decoder(Question)
SEALS: Final = msgspec.msgpack.Decoder(Sealed)
ANSWERS: Final = msgspec.msgpack.Decoder(Answer)
GREETINGS: Final = msgspec.msgpack.Decoder(Greeting)


def frame(message: msgspec.Struct) -> bytes:
    return framing.frame(msgspec.msgpack.encode(message), FRAME_BYTES_MAX)


def length_in(header: bytes | bytearray | memoryview, limit: int) -> int:
    """How many bytes follow the first `LENGTH_BYTES` of a frame. Raises ProtocolError when they are too many."""
    size = int.from_bytes(header, "little")
    if size > limit:
        raise ProtocolError(f"a message of {size} bytes is longer than the {limit} expected here")
    return size


def message_in(decoder: msgspec.msgpack.Decoder[T], words: bytes | bytearray | memoryview) -> T:
    """Raises ProtocolError when it is not one that the decoder knows."""
    try:
        return decode(decoder, words)
    except Malformed as error:
        raise ProtocolError(f"not a message that is expected here: {error}") from error


def hello_to(challenge: Greeting, key: str) -> Hello:
    """What the caller says next. Raises ProtocolError when no server of this version is there."""
    if not isinstance(challenge, Challenge) or challenge.version != VERSION:
        raise ProtocolError(f"no transfer server of version {VERSION} is there")
    return Hello(proof=prove(key, challenge.nonce))


def require_welcome(answer: Greeting) -> None:
    """Raises ProtocolError when the server does not want the caller."""
    if not isinstance(answer, Welcome):
        raise ProtocolError(answer.reason if isinstance(answer, Refused) else "it did not say welcome")


def require(answer: Answer, kind: type[T]) -> T:
    """`answer`, if it is of the kind that was asked for. Raises ProtocolError, with the reason of a refusal."""
    if not isinstance(answer, kind):
        raise ProtocolError(answer.reason if isinstance(answer, Refused) else "it said what was not asked")
    return answer


def prove(key: str, nonce: bytes) -> bytes:
    """What shows that the key is known. Source: RFC 2104."""
    return hmac.digest(key.encode(), nonce, "sha256")


def parse_address(address: str) -> tuple[str, int]:
    """ "host:port", an IPv6 host in brackets. Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 0xFFFF:
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Channel:
    """One connection of a server: frames and bulk bytes, with a bound on every wait.

    Every method raises OSError (TimeoutError when nothing moves for `patience_s`).
    """

    def __init__(self, connection: socket.socket, *, patience_s: float = PATIENCE_S) -> None:
        connection.settimeout(0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()

    async def say(self, message: msgspec.Struct) -> None:
        await self.send(memoryview(frame(message)))

    async def hear(self, decoder: msgspec.msgpack.Decoder[T], *, limit: int, idle_s: float = 0.0) -> T:
        """The next message. `idle_s`: how much longer than the patience its beginning may take."""
        length = memoryview(bytearray(LENGTH_BYTES))
        await self.receive(length, idle_s=idle_s)
        words = memoryview(bytearray(length_in(length, limit)))
        await self.receive(words)
        return message_in(decoder, words)

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
    await channel.say(Challenge(version=VERSION, nonce=nonce))
    hello = await channel.hear(HELLOS, limit=GREETING_BYTES_MAX)
    if not hmac.compare_digest(hello.proof, prove(key, nonce)):
        await channel.say(Refused("the key of the job is not this one"))
        raise ProtocolError("a caller does not know the key")
    await channel.say(Welcome())


async def call(address: str, key: str, *, patience_s: float = PATIENCE_S) -> Channel:
    """A greeted connection to a transfer server. Raises OSError when there is none or it does not want us."""
    try:
        host, port = parse_address(address)
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
        challenge = await channel.hear(GREETINGS, limit=GREETING_BYTES_MAX)
        await channel.say(hello_to(challenge, key))
        require_welcome(await channel.hear(GREETINGS, limit=GREETING_BYTES_MAX))
    except BaseException:
        channel.close()
        raise
    return channel
