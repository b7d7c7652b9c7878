"""Length-prefixed frames: four bytes, little-endian, then that many bytes of msgpack.

Used on both of the launcher's local sockets: to the workers and to the warm parent.
"""

import struct

from holdfast.api.control import MAX_FRAME_BYTES
from holdfast.api.errors import Damaged

_LENGTH = struct.Struct("<I")


def frame(payload: bytes) -> bytes:
    """One frame. Raises Damaged when `payload` is larger than a receiver would take."""
    if len(payload) > MAX_FRAME_BYTES:
        raise Damaged(f"a frame of {len(payload)} bytes is larger than the {MAX_FRAME_BYTES} allowed")
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """Cuts a byte stream into frames. Holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames completed by `data`. Raises Damaged when one announces itself as too large."""
        self._pending += data
        complete = []
        while len(self._pending) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending)
            if length > MAX_FRAME_BYTES:
                raise Damaged(f"a frame of {length} bytes is larger than the {MAX_FRAME_BYTES} allowed")
            end = _LENGTH.size + length
            if len(self._pending) < end:
                break
            complete.append(bytes(self._pending[_LENGTH.size : end]))
            del self._pending[:end]
        return complete
