"""The crowd of the watchdog's bench: frames as they arrive, and how a round spreads."""

import asyncio
import struct

import pytest
from crowd.cast import Part
from crowd.crowd import Crowd, Spread
from crowd.play import Order, Strain, Troupe
from crowd.server import check_taken
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


async def lose(troupe: Troupe, number: int) -> None:
    async with asyncio.timeout(30):
        while troupe.lost < number:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)


async def test_connections_that_are_lost_are_counted() -> None:
    served: list[asyncio.Event] = []

    async def agree_until_told(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.Event())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching\r\n\r\n")
        await served[-1].wait()
        writer.close()
        await writer.wait_closed()

    parts = tuple(Part("bench/job", index) for index in range(2))
    async with await asyncio.start_server(agree_until_told, "127.0.0.1", 0) as server:
        order = Order(server.sockets[0].getsockname()[1], "token", "127.0.0.1", parts[:1], parts[1:], 1.0)
        troupe = Troupe(order)
        await troupe.assemble("launchers")
        await troupe.assemble("agents")
        assert troupe.lost == 0
        for number, over in enumerate(served):
            over.set()
            await lose(troupe, number + 1)


class Stage:
    """A process of the crowd that answers everything with one strain."""

    def __init__(self, strain: Strain) -> None:
        self._strain = strain

    def send(self, order: object) -> None:
        pass

    def recv(self) -> Strain:
        return self._strain


@pytest.mark.parametrize(
    ("strain", "says"),
    [
        (Strain(0.0, lost=3, has_stopped=False), "lost 3 connections"),
        (Strain(0.0, lost=0, has_stopped=True), "stopped being busy"),
    ],
)
def test_a_crowd_that_is_not_whole_yields_no_figure(strain: Strain, says: str) -> None:
    stages = [Stage(Strain(0.5, lost=0, has_stopped=False)), Stage(strain)]
    with pytest.raises(RuntimeError, match=says):
        Crowd(stages, (), 1).strain()  # type: ignore[arg-type]
    assert Crowd(stages[:1], (), 1).strain() == 0.5  # type: ignore[arg-type]


def test_a_watchdog_that_takes_too_few_reports_yields_no_figure() -> None:
    check_taken(1000.0, before=50, after=1010)
    with pytest.raises(RuntimeError, match="took 900 of 1000 reports"):
        check_taken(1000.0, before=50, after=950)


def test_a_spread_tells_the_first_the_middle_and_the_last() -> None:
    spread = Spread.of([0.001 * number for number in range(101)])
    assert (spread.first_s, spread.last_s) == (0.0, 0.1)
    assert spread.median_s == pytest.approx(0.05)
    assert spread.p99_s == pytest.approx(0.099)
