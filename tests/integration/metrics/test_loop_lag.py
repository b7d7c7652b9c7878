"""How late the event loop is."""

import asyncio
import time

from patience import patient

from holdfast.watchdog.server.scrape import LAG_LOOKED_AT_EVERY_S, LoopLag

BLOCKED_S = 2.0 * LAG_LOOKED_AT_EVERY_S
PATIENCE_S = patient(20.0)


async def test_a_loop_that_was_held_up_says_so() -> None:
    lag = LoopLag()
    assert lag.worst_s == 0.0
    following = asyncio.create_task(lag.follow())
    await asyncio.sleep(0)
    time.sleep(BLOCKED_S)  # noqa: ASYNC251 - holding the loop up is what is tried
    async with asyncio.timeout(PATIENCE_S):
        while lag.worst_s == 0.0:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.05)
    assert lag.worst_s >= BLOCKED_S - LAG_LOOKED_AT_EVERY_S - 0.01
    following.cancel()
