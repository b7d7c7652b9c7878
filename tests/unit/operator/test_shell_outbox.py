"""What the watchdog is told, and how often."""

import asyncio
from contextlib import aclosing

import pytest

from holdfast.api.plan import NodeObserved, NodeState, PodEnd, PodObserved, PodState
from holdfast.operator.watchdog import Outbox, Seen

READY = NodeObserved("n1", NodeState.READY)
GONE = NodeObserved("n1", NodeState.GONE)
RUNNING = PodObserved("gpt-0", "n1", PodState.RUNNING)
ENDED = PodObserved("gpt-0", "n1", PodState.GONE, "OOMKilled")


class Listener:
    """One connection: everything it was told."""

    def __init__(self, outbox: Outbox) -> None:
        self.told: list[Seen] = []
        self._task = asyncio.create_task(self._follow(outbox))

    async def _follow(self, outbox: Outbox) -> None:
        async with aclosing(outbox.follow()) as seen:  # type: ignore[type-var]
            async for each in seen:
                self.told.append(each)

    async def settle(self) -> list[Seen]:
        for _ in range(10):
            await asyncio.sleep(0)
        return self.told

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_the_same_is_not_told_twice_on_one_line() -> None:
    outbox = Outbox()
    listener = Listener(outbox)
    outbox.put([READY, RUNNING])
    await listener.settle()
    outbox.put([READY, RUNNING])
    assert await listener.settle() == [READY, RUNNING]
    outbox.put([GONE, RUNNING])
    assert await listener.settle() == [READY, RUNNING, GONE]
    await listener.close()


async def test_a_new_line_is_told_everything() -> None:
    outbox = Outbox()
    outbox.put([READY, RUNNING])
    first = Listener(outbox)
    await first.settle()
    await first.close()
    second = Listener(outbox)
    assert await second.settle() == [READY, RUNNING]
    await second.close()


async def test_a_pod_that_is_seen_no_more_is_told_as_gone_once() -> None:
    outbox = Outbox()
    listener = Listener(outbox)
    outbox.put([RUNNING])
    await listener.settle()
    outbox.put([])
    outbox.put([])
    told = await listener.settle()
    assert told[1:] == [PodObserved("gpt-0", "n1", PodState.GONE, "the pod was deleted", PodEnd.DELETED)]
    await listener.close()


@pytest.mark.parametrize("end", [None, PodEnd.DISPLACED])
async def test_a_pod_that_was_on_its_way_out_is_gone_for_that(end: PodEnd | None) -> None:
    outbox = Outbox()
    outbox.put([PodObserved("gpt-0", "n1", PodState.LEAVING, "why", end)])
    outbox.put([])
    listener = Listener(outbox)
    assert await listener.settle() == [PodObserved("gpt-0", "n1", PodState.GONE, "the pod was deleted", end)]
    await listener.close()


async def test_a_pod_that_vanished_while_the_line_was_broken_is_told_on_the_next() -> None:
    outbox = Outbox()
    outbox.put([RUNNING])
    outbox.put([])
    listener = Listener(outbox)
    assert [type(each) for each in await listener.settle()] == [PodObserved]
    await listener.close()


async def test_a_pod_whose_end_was_told_is_not_told_as_deleted() -> None:
    outbox = Outbox()
    listener = Listener(outbox)
    outbox.put([ENDED])
    await listener.settle()
    outbox.put([])
    assert await listener.settle() == [ENDED]
    await listener.close()


async def test_a_pod_of_the_same_name_is_told_of_after_the_one_before_it_is_gone() -> None:
    """Both changes while the line was broken: the last word is of the pod that is there."""
    outbox = Outbox()
    outbox.put([RUNNING])
    outbox.put([])
    again = PodObserved("gpt-0", "n2", PodState.RUNNING)
    outbox.put([again])
    listener = Listener(outbox)
    told = await listener.settle()
    assert [each.state for each in told if isinstance(each, PodObserved)] == [PodState.GONE, PodState.RUNNING]
    assert told[-1] == again
    await listener.close()
