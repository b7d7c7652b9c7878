"""The client's side of a WebSocket, no more than a crowd needs: binary frames out, whole frames in.

Source: RFC 6455, section 5.2
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Final

# A mask of zeros is a mask like any other, and leaves the payload as it is.
_MASKED: Final = 0x80
_ZERO_MASK: Final = bytes(4)
_BINARY: Final = 0x82
_OPCODE: Final = 0x0F
_PING: Final = 0x9
_PONG: Final = 0x8A
_LENGTH_IN_2: Final = 126
_LENGTH_IN_8: Final = 127
# Of a long frame only the beginning is kept: it says what the frame is.
KEPT_BYTES: Final = 16_384


def framed(body: bytes, head: int = _BINARY) -> bytes:
    """One masked frame."""
    size = len(body)
    if size < _LENGTH_IN_2:
        return bytes((head, _MASKED | size)) + _ZERO_MASK + body
    if size < 1 << 16:
        return struct.pack("!BBH", head, _MASKED | _LENGTH_IN_2, size) + _ZERO_MASK + body
    return struct.pack("!BBQ", head, _MASKED | _LENGTH_IN_8, size) + _ZERO_MASK + body


class Wire(asyncio.Protocol):
    """One connection. `opened` is called once the server has agreed, `heard` with each whole frame's beginning."""

    def __init__(self, request: bytes, opened: Callable[["Wire"], None], heard: Callable[[bytes], None]) -> None:
        self._request = request
        self._opened = opened
        self._heard = heard
        self._pending = bytearray()
        self._skip = 0  # bytes of a long frame that are still to come and not kept
        self._kept = b""
        self._upgraded = False
        self.is_gone = False  # it was there once and is no more

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_gone = True

    def say(self, body: bytes) -> None:
        self._transport.write(framed(body))

    def data_received(self, chunk: bytes) -> None:
        if self._skip:
            passed = min(self._skip, len(chunk))
            self._skip -= passed
            chunk = chunk[passed:]
            if not self._skip:
                self._heard(self._kept)
            if not chunk:
                return
        self._pending += chunk
        if not self._upgraded:
            end = self._pending.find(b"\r\n\r\n")
            if end < 0:
                return
            if not self._pending.startswith(b"HTTP/1.1 101"):
                raise ConnectionError(bytes(self._pending[:end]).decode())
            del self._pending[: end + 4]
            self._upgraded = True
            self._opened(self)
        while self._pending and self._take():
            pass

    def _take(self) -> bool:
        """Take one frame off what is pending; False when its beginning is not there yet."""
        pending = self._pending
        if len(pending) < 2:
            return False
        size, start = pending[1] & 0x7F, 2
        if size == _LENGTH_IN_2:
            if len(pending) < 4:
                return False
            size, start = int.from_bytes(pending[2:4]), 4
        elif size == _LENGTH_IN_8:
            if len(pending) < 10:
                return False
            size, start = int.from_bytes(pending[2:10]), 10
        have = len(pending) - start
        if have < size and (have < KEPT_BYTES or size <= KEPT_BYTES):
            return False
        body = bytes(pending[start : start + min(size, KEPT_BYTES)])
        opcode = pending[0] & _OPCODE
        if have < size:
            self._skip, self._kept = size - have, body
            pending.clear()
            return False
        del pending[: start + size]
        if opcode == _PING:
            self._transport.write(framed(body, _PONG))
        elif opcode < 8:
            self._heard(body)
        return True
