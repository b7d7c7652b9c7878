"""A connection's outbox: the newest of each thing, and nobody waits."""

import asyncio

import pytest

from holdfast.watchdog.server.connection import Farewell, Outbox, Slot

BYE = Farewell(1001, "bye")


class Wire:
    """Takes frames only while its gate is open."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.gate = asyncio.Event()

    async def send(self, frame: bytes) -> None:
        await self.gate.wait()
        self.sent.append(frame)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_stuck_reader_gets_the_frame_in_flight_and_then_the_newest_of_each_slot() -> None:
    outbox, wire = Outbox(), Wire()
    outbox.put(Slot.DESIRED, b"round 1")
    sender = asyncio.create_task(outbox.drain(wire.send))
    await settled()
    for number in range(2, 1000):
        outbox.put(Slot.DESIRED, b"round %d" % number)
    outbox.put(Slot.PACE, b"pace")
    wire.gate.set()
    outbox.finish(BYE)
    await sender
    assert outbox.farewell == BYE
    assert wire.sent == [b"round 1", b"round 999", b"pace"]


async def test_frames_put_later_are_sent_too() -> None:
    outbox, wire = Outbox(), Wire()
    wire.gate.set()
    sender = asyncio.create_task(outbox.drain(wire.send))
    for frame in (b"a", b"b"):
        outbox.put(Slot.TAKEN, frame)
        await settled()
    assert wire.sent == [b"a", b"b"]
    sender.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sender


async def test_finishing_with_nothing_left_ends_at_once() -> None:
    outbox, wire = Outbox(), Wire()
    outbox.finish(BYE)
    await outbox.drain(wire.send)
    assert wire.sent == []


async def test_a_connection_that_is_gone_ends_the_sending() -> None:
    async def send(frame: bytes) -> None:
        raise ConnectionResetError("gone")

    outbox = Outbox()
    outbox.put(Slot.PLAN, b"plan")
    with pytest.raises(ConnectionResetError):
        await outbox.drain(send)
