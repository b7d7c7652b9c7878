"""Keys that are due, each once, never in two hands."""

import asyncio

import pytest

from holdfast.operator.kube.worklist import PAUSE_MOST_S, RETRY_MOST_S, Worklist


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fresh(pause_s: float = 0.0) -> tuple[Worklist, Clock]:
    clock = Clock()
    return Worklist(clock, pause_s=pause_s), clock


async def taken(worklist: Worklist) -> str | None:
    """What is due at this moment, None when nothing is."""
    taking = asyncio.create_task(worklist.take())
    for _ in range(5):
        await asyncio.sleep(0)
    if taking.done():
        return taking.result()
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    return None


async def test_a_key_added_twice_is_taken_once() -> None:
    worklist, _ = fresh()
    worklist.add("a")
    worklist.add("a")
    assert await taken(worklist) == "a"
    assert await taken(worklist) is None


async def test_a_key_in_hand_is_taken_again_only_when_it_was_put_down() -> None:
    worklist, _ = fresh()
    worklist.add("a")
    assert await taken(worklist) == "a"
    worklist.add("a")
    assert await taken(worklist) is None
    worklist.done("a", 300.0)
    assert await taken(worklist) == "a"


async def test_a_key_that_went_well_is_due_again_after_its_time() -> None:
    worklist, clock = fresh()
    worklist.add("a")
    await taken(worklist)
    worklist.done("a", 300.0)
    assert await taken(worklist) is None
    clock.now += 300.0
    assert len(worklist) == 1
    assert await taken(worklist) == "a"


async def test_a_failure_waits_longer_each_time_whatever_comes_in() -> None:
    worklist, clock = fresh()
    waits = []
    worklist.add("a")
    for _ in range(20):
        assert await taken(worklist) == "a"
        worklist.add("a")
        waits.append(worklist.failed("a"))
        assert await taken(worklist) is None
        clock.now += waits[-1]
    assert waits[0] < waits[4] < waits[8]
    assert max(waits) <= RETRY_MOST_S


async def test_after_failures_a_stream_of_changes_asks_for_no_stream_of_looks() -> None:
    worklist, clock = fresh()
    worklist.add("a")
    looks = 0
    for _ in range(600):  # a minute with ten changes each second
        worklist.add("a")
        if await taken(worklist) == "a":
            looks += 1
            worklist.failed("a")
        clock.now += 0.1
    assert looks <= 40


async def test_a_change_ends_a_long_wait_but_not_a_pause() -> None:
    worklist, clock = fresh(pause_s=0.5)
    worklist.add("a")
    await taken(worklist)
    worklist.done("a", 300.0)
    worklist.add("a")
    assert await taken(worklist) is None
    clock.now += 0.5
    assert await taken(worklist) == "a"


async def test_a_dropped_key_comes_back_only_when_it_was_added_meanwhile() -> None:
    worklist, clock = fresh()
    worklist.add("a")
    await taken(worklist)
    worklist.drop("a")
    clock.now += 1000.0
    assert await taken(worklist) is None
    worklist.add("a")
    await taken(worklist)
    worklist.add("a")
    worklist.drop("a")
    assert await taken(worklist) == "a"


async def test_the_earliest_key_comes_first() -> None:
    worklist, clock = fresh()
    for key, again_after_s in (("late", 5.0), ("soon", 1.0), ("never", 900.0)):
        worklist.add(key)
        assert await taken(worklist) == key
        worklist.done(key, again_after_s)
    clock.now += 10.0
    worklist.add("never")
    assert [await taken(worklist) for _ in range(4)] == ["soon", "late", "never", None]


@pytest.mark.parametrize(
    ("looked_s", "pause_s"),
    [
        pytest.param(0.001, 0.05, id="a small job has the least pause"),
        pytest.param(0.1, 0.3, id="a large one a pause as large as its look"),
        pytest.param(5.0, PAUSE_MOST_S, id="no news waits longer than that"),
    ],
)
async def test_a_look_that_took_much_time_is_followed_by_a_longer_pause(looked_s: float, pause_s: float) -> None:
    clock, spent = Clock(), Clock()
    worklist = Worklist(clock, pause_s=0.05, spent_s=spent)
    worklist.add("a")
    assert await taken(worklist) == "a"
    spent.now += looked_s
    worklist.done("a", 300.0)
    worklist.add("a")
    clock.now += pause_s - 0.01
    assert await taken(worklist) is None
    clock.now += 0.02
    assert await taken(worklist) == "a"


async def test_a_look_that_asks_for_the_next_one_is_not_put_off_by_its_own_pause() -> None:
    worklist, clock = fresh(pause_s=0.5)
    worklist.add("a")
    assert await taken(worklist) == "a"
    worklist.add("a")
    worklist.done("a", 0.01)
    clock.now += 0.01
    assert await taken(worklist) == "a"
