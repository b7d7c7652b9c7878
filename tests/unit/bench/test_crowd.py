"""The crowd of the watchdog's bench: frames as they arrive, and how a round spreads."""

import struct

import pytest
from crowd.crowd import Spread
from crowd.wire import KEPT_BYTES, Wire, framed


class Line:
    """A transport that remembers what was written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, chunk: bytes) -> None:
        self.written.append(chunk)


def served(body: bytes) -> bytes:
    """A frame as a server sends it."""
    if len(body) < 126:
        return bytes((0x82, len(body))) + body
    head = struct.pack("!BBH", 0x82, 126, len(body)) if len(body) < 1 << 16 else b""
    return (head or struct.pack("!BBQ", 0x82, 127, len(body))) + body


def test_a_client_masks_what_it_says_with_nothing() -> None:
    assert framed(b"abc") == b"\x82\x83\0\0\0\0abc"
    assert framed(b"a" * 300)[:8] == b"\x82\xfe\x01\x2c\0\0\0\0"


@pytest.mark.parametrize("piece", [1, 7, 4096, 1 << 20], ids=["bytes", "pieces", "chunks", "at once"])
async def test_frames_are_heard_whole_however_they_arrive(piece: int) -> None:
    heard: list[bytes] = []
    opened: list[Wire] = []
    wire = Wire(b"GET", opened.append, heard.append)
    wire._transport = Line()  # type: ignore[assignment]
    bodies = [b"x", b"y" * 200, b"z" * 5000, b"", b"w" * (3 * KEPT_BYTES), b"end"]
    stream = b"HTTP/1.1 101 Switching\r\n\r\n" + b"".join(served(body) for body in bodies)
    for at in range(0, len(stream), piece):
        wire.data_received(stream[at : at + piece])
    assert opened == [wire]
    assert heard == [body[:KEPT_BYTES] for body in bodies], "of a long frame only the beginning is kept"


def test_a_spread_tells_the_first_the_middle_and_the_last() -> None:
    spread = Spread.of([0.001 * number for number in range(101)])
    assert (spread.first_s, spread.last_s) == (0.0, 0.1)
    assert spread.median_s == pytest.approx(0.05)
    assert spread.p99_s == pytest.approx(0.099)
