"""Nothing that a source answers, foreseen or not, ends the looks at it."""

import asyncio
import threading

import pytest

from holdfast.agent.sensors.background import Background, Polled, Sight
from holdfast.api.telemetry import Unreadable

PATIENCE_S = 25.0


class Source:
    """Fails twice in a way that nobody foresaw, then answers."""

    def __init__(self) -> None:
        self.looks = 0

    def look(self) -> str:
        self.looks += 1
        if self.looks <= 2:
            raise OverflowError("date value out of range")
        return "well"


async def test_work_that_fails_is_said_logged_once_and_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    source, said, answered = Source(), list[str](), asyncio.Event()

    async def work() -> None:
        source.look()
        answered.set()
        await asyncio.Event().wait()

    background = Background(work, name="cloud", failed=said.append, again_s=0.0)
    background.start()
    await asyncio.wait_for(answered.wait(), PATIENCE_S)
    background.close()
    assert said == ["the look failed: OverflowError('date value out of range')"] * 2
    assert [record.getMessage() for record in caplog.records] == ["a source's look failed: source=cloud"]


def test_a_look_that_fails_makes_the_source_unreadable_until_one_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, begun, go_on = Source(), threading.Semaphore(0), threading.Semaphore(0)

    def look() -> str:
        begun.release()
        assert go_on.acquire(timeout=PATIENCE_S)
        return source.look()

    def after_another_look() -> Sight[str] | Unreadable | None:
        go_on.release()
        assert begun.acquire(timeout=PATIENCE_S)  # the next one begins when this one's end is known
        return polled.latest(0.0)

    polled = Polled(look, name="disk", interval_s=0.0, patience_s=60.0, clock=lambda: 0.0)
    assert polled.latest(0.0) is None
    assert begun.acquire(timeout=PATIENCE_S)
    failed = Unreadable("disk", "the look failed: OverflowError('date value out of range')")
    assert [after_another_look() for _ in range(3)] == [failed, failed, Sight("well", 0.0)]
    assert [record.getMessage() for record in caplog.records] == ["a source's look failed: source=disk"]
    polled.close()
    go_on.release()
