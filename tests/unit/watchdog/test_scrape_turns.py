"""A page of metrics beside thousands of messages that wait: it takes no turn of theirs after each slice."""

import asyncio
import time

from holdfast.watchdog.server.scrape import Scraper

SLICES = 40


def work(seconds: float) -> None:
    time.sleep(seconds)


async def test_a_page_goes_on_at_once_for_a_part_of_what_the_others_took() -> None:
    loop, turns = asyncio.get_running_loop(), 0

    def others() -> None:
        nonlocal turns
        turns += 1
        work(0.02)
        loop.call_soon(others)

    loop.call_soon(others)
    scraper = Scraper()
    for _ in range(SLICES):
        work(0.001)
        await scraper.give_way()
    assert 1 <= turns <= SLICES // 2
