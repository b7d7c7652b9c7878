"""What transfer servers and workers say to each other over TCP.

A frame is a four-byte little-endian length and that many bytes of msgpack. The server speaks first (`Challenge`);
nothing but `Hello` is heard before the caller has proved that it knows the job's key, which itself is never sent.
Then the caller asks and the server answers, one question at a time. `Content` is followed by that many raw bytes.
`Put` is answered by `Ready`; then the image's bytes follow, and `Sealed` with the hashes of their blocks, which is
answered by `Kept`. Anything may be answered by `Refused`.
"""

import hmac
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


class Listing(msgspec.Struct, frozen=True, tag=True):
    """What do you hold? Answered by `Holdings`."""


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


class Holdings(msgspec.Struct, frozen=True, tag=True):
    items: tuple[Item, ...]


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


Question = Listing | Read | Block | Put
Answer = Holdings | Content | Ready | Kept | Refused

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


def is_proof(proof: bytes, key: str, nonce: bytes) -> bool:
    return hmac.compare_digest(proof, prove(key, nonce))


def parse_address(address: str) -> tuple[str, int]:
    """ "host:port", an IPv6 host in brackets. Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 0xFFFF:
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
