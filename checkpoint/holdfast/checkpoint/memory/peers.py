"""A worker's connections to transfer servers: blocking, with a bound on every wait, and each used again."""

import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from holdfast.checkpoint.format.manifest import hash_block
from holdfast.checkpoint.memory import protocol
from holdfast.checkpoint.memory.protocol import (
    Block,
    Content,
    ProtocolError,
    Question,
    Read,
    Which,
)

T = TypeVar("T")


class Peer:
    """One connection; one thread at a time. Every method raises OSError when the server is gone, does not answer
    for `patience_s` (TimeoutError), or says no (ProtocolError).
    """

    def __init__(self, address: str, key: str, *, patience_s: float = protocol.PATIENCE_S) -> None:
        try:
            where = protocol.parse_address(address)
        except ValueError as error:
            raise ProtocolError(str(error)) from error
        self._socket = socket.create_connection(where, timeout=patience_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            challenge = self._hear(protocol.GREETINGS, protocol.GREETING_BYTES_MAX)
            self._say(protocol.hello_to(challenge, key))
            protocol.require_welcome(self._hear(protocol.GREETINGS, protocol.GREETING_BYTES_MAX))
        except BaseException:
            self._socket.close()
            raise

    def read(self, which: Which, offset: int, into: memoryview) -> int:
        """Fill `into` with the image from `offset` on; how many bytes came, fewer at the image's end.

        What the rank overwrites meanwhile comes mixed: compare with the hashes.
        """
        content = self._ask(Read(which, offset, into.nbytes), Content)
        if content.length_bytes > into.nbytes:
            raise ProtocolError("more was sent than asked for")
        self._receive(into[: content.length_bytes])
        return content.length_bytes

    def block(self, wanted: str) -> bytes:
        """What it says has this hash: for the caller to verify."""
        content = self._ask(Block(wanted), Content)
        if content.length_bytes > protocol.READ_BYTES_MAX:
            raise ProtocolError("a block is not that long")
        found = bytearray(content.length_bytes)
        self._receive(memoryview(found))
        return bytes(found)

    def close(self) -> None:
        self._socket.close()

    def _ask(self, question: Question, kind: type[T]) -> T:
        self._say(question)
        return protocol.require(self._hear(protocol.ANSWERS, protocol.ANSWER_BYTES_MAX), kind)

    def _say(self, message: msgspec.Struct) -> None:
        self._socket.sendall(protocol.frame(message))

    def _hear(self, decoder: msgspec.msgpack.Decoder[T], limit: int) -> T:
        length = bytearray(protocol.LENGTH_BYTES)
        self._receive(memoryview(length))
        words = bytearray(protocol.length_in(length, limit))
        self._receive(memoryview(words))
        return protocol.message_in(decoder, words)

    def _receive(self, into: memoryview) -> None:
        while into.nbytes:
            count = self._socket.recv_into(into)
            if count == 0:
                raise ConnectionResetError("the transfer server has hung up")
            into = into[count:]


RESTORE_PATIENCE_S = 5.0
_AVOIDED_S = 30.0
_ASKED_MAX = 16  # A block is with its rank's node and keepers, or nowhere: a large job is not searched through.


class Peers:
    """Connections by address, for any number of threads. `close` when the restore is over."""

    def __init__(self, key: str, *, patience_s: float = RESTORE_PATIENCE_S) -> None:
        self._key = key
        self._patience_s = patience_s
        self._idle: dict[str, list[Peer]] = {}
        self._avoided_until_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def ask(self, address: str, question: Callable[[Peer], T]) -> T:
        """The answer. Raises OSError; after that nobody at this address is asked for a while."""
        with self._lock:
            if self._avoided_until_s.get(address, 0.0) > time.monotonic():
                raise ConnectionError(f"{address} did not answer a moment ago")
            idle = self._idle.get(address)
            peer = idle.pop() if idle else None
        try:
            peer = peer or Peer(address, self._key, patience_s=self._patience_s)
            answer = question(peer)
        except BaseException as error:
            if peer is not None:
                peer.close()
            # One that says no is there and well, but has not what was asked for.
            if isinstance(error, OSError) and (peer is None or not isinstance(error, ProtocolError)):
                with self._lock:
                    self._avoided_until_s[address] = time.monotonic() + _AVOIDED_S
            raise
        with self._lock:
            self._idle.setdefault(address, []).append(peer)
        return answer

    def block(self, wanted: str, addresses: Iterable[str]) -> bytes | None:
        """The block with this hash from the first that has it, verified; None when nobody does."""
        ends_s = time.monotonic() + self._patience_s
        for address in list(addresses)[:_ASKED_MAX]:
            if time.monotonic() > ends_s:
                break
            try:
                found = self.ask(address, lambda peer: peer.block(wanted))
            except OSError:
                continue
            if hash_block(found) == wanted:
                return found
        return None

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, {}
        for peers in idle.values():
            for peer in peers:
                peer.close()
