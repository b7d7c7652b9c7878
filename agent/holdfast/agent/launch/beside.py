"""Work of the launcher that goes on beside its own, and whose failure is the launcher's."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

from holdfast.agent.launch.outcome import Outcome


@asynccontextmanager
async def running_beside(work: Coroutine[None, None, None], over: asyncio.Future[Outcome]) -> AsyncIterator[None]:
    """Run `work` beside the block and end it after it. Should it fail, `over` takes its error."""

    def pass_on(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not over.done():
            over.set_exception(error)

    task = asyncio.create_task(work)
    task.add_done_callback(pass_on)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
