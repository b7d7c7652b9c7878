"""A child process of the launcher, seen by its process id."""

import asyncio
import os


async def ended(pid: int) -> None:
    """Return when the kernel has ended our child `pid`; most often it is still to be reaped."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop.add_reader(descriptor, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
