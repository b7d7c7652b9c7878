"""A worker's connection to a transfer server: blocking, with a bound on every wait."""

import socket
from typing import TypeVar

import msgspec

from holdfast.api.decoding import decode
from holdfast.api.errors import Malformed
from holdfast.checkpoint.memory import protocol
from holdfast.checkpoint.memory.channel import PATIENCE_S, Misspoken
from holdfast.checkpoint.memory.protocol import (
    Block,
    Challenge,
    Content,
    Greeting,
    Hello,
    Item,
    Listing,
    Question,
    Read,
    Refused,
    Welcome,
    Which,
)

T = TypeVar("T")


class Peer:
    """One connection; one thread at a time. Every method raises OSError when the server is gone, does not answer
    for `patience_s` (TimeoutError), or says no (Misspoken).
    """

    def __init__(self, address: str, key: str, *, patience_s: float = PATIENCE_S) -> None:
        try:
            where = protocol.parse_address(address)
        except ValueError as error:
            raise Misspoken(str(error)) from error
        self._socket = socket.create_connection(where, timeout=patience_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._greet(key)
        except BaseException:
            self._socket.close()
            raise

    def holdings(self) -> tuple[Item, ...]:
        return self._ask(Listing(), protocol.Holdings).items

    def read(self, which: Which, offset: int, into: memoryview) -> int:
        """Fill `into` with the image from `offset` on; how many bytes came, fewer at the image's end.

        What the rank overwrites meanwhile comes mixed: compare with the hashes.
        """
        content = self._ask(Read(which, offset, into.nbytes), Content)
        if content.length_bytes > into.nbytes:
            raise Misspoken("more was sent than asked for")
        self._receive(into[: content.length_bytes])
        return content.length_bytes

    def block(self, wanted: str) -> bytes:
        """What it says has this hash: for the caller to verify."""
        content = self._ask(Block(wanted), Content)
        if content.length_bytes > protocol.READ_BYTES_MAX:
            raise Misspoken("a block is not that long")
        found = bytearray(content.length_bytes)
        self._receive(memoryview(found))
        return bytes(found)

    def close(self) -> None:
        self._socket.close()

    def _greet(self, key: str) -> None:
        challenge = self._hear(protocol.GREETINGS, protocol.GREETING_BYTES_MAX)
        if not isinstance(challenge, Challenge) or challenge.version != protocol.VERSION:
            raise Misspoken(f"no transfer server of version {protocol.VERSION} is there")
        self._say(Hello(proof=protocol.prove(key, challenge.nonce)))
        answer: Greeting = self._hear(protocol.GREETINGS, protocol.GREETING_BYTES_MAX)
        if not isinstance(answer, Welcome):
            raise Misspoken(answer.reason if isinstance(answer, Refused) else "it did not say welcome")

    def _ask(self, question: Question, kind: type[T]) -> T:
        self._say(question)
        answer = self._hear(protocol.ANSWERS, protocol.ANSWER_BYTES_MAX)
        if not isinstance(answer, kind):
            raise Misspoken(answer.reason if isinstance(answer, Refused) else "it said what was not asked")
        return answer

    def _say(self, message: msgspec.Struct) -> None:
        self._socket.sendall(protocol.frame(message))

    def _hear(self, decoder: msgspec.msgpack.Decoder[T], limit: int) -> T:
        length = bytearray(protocol.LENGTH_BYTES)
        self._receive(memoryview(length))
        size = int.from_bytes(length, "little")
        if size > limit:
            raise Misspoken(f"a message of {size} bytes is longer than the {limit} expected here")
        words = bytearray(size)
        self._receive(memoryview(words))
        try:
            return decode(decoder, words)
        except Malformed as error:
            raise Misspoken(f"not a message that is expected here: {error}") from error

    def _receive(self, into: memoryview) -> None:
        while into.nbytes:
            count = self._socket.recv_into(into)
            if count == 0:
                raise ConnectionResetError("the transfer server has hung up")
            into = into[count:]
