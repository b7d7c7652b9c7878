"""Frames on a stream: a four-byte little-endian length, and that many bytes."""

import struct
from collections.abc import Iterator

_LENGTH = struct.Struct("<I")


class FrameTooLong(ValueError):
    """The other end announced more bytes than are accepted."""


def framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts arriving bytes into frames. Holds at most one unfinished frame."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._received = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Take what arrived, yield the frames it completes. Raises FrameTooLong."""
        self._received += chunk
        while len(self._received) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._received)
            if size > self._max_bytes:
                raise FrameTooLong(f"a frame of {size} bytes is longer than {self._max_bytes}")
            end = _LENGTH.size + size
            if len(self._received) < end:
                return
            frame = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            yield frame
