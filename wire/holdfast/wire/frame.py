"""Frames on a stream: a four-byte little-endian length, and that many bytes.

Used on every local socket: worker to launcher, launcher to warm parent, rank to the round's store.
"""

import struct
from collections.abc import Iterator

from holdfast.api.control import MAX_FRAME_BYTES
from holdfast.api.errors import Damaged

_LENGTH = struct.Struct("<I")


def frame(body: bytes, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """One frame. Raises Damaged when `body` is larger than the receiver takes."""
    if len(body) > max_bytes:
        raise Damaged(f"a frame of {len(body)} bytes is larger than the {max_bytes} allowed")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts arriving bytes into frames. Holds at most one unfinished frame; none may be longer than `max_bytes`."""

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_bytes = max_bytes
        self._received = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Take what arrived, yield the frames it completes. Raises Damaged when one announces itself too large."""
        self._received += chunk
        while len(self._received) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._received)
            if size > self.max_bytes:
                raise Damaged(f"a frame of {size} bytes is larger than the {self.max_bytes} allowed")
            end = _LENGTH.size + size
            if len(self._received) < end:
                return
            body = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            yield body
