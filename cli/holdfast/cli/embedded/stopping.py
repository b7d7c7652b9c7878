"""Stopping a run by hand: it saves first, within a bounded time, and says what stopping costs.

As a pod that is drained does. Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
(terminationGracePeriodSeconds, 30 s)
"""

import asyncio
import signal
from typing import Final, Self

from holdfast.api.errors import Unavailable
from holdfast.api.status import JobStatus
from holdfast.cli.embedded.watchdog import WatchdogLink

SAVE_WITHIN_S: Final = 30.0


class StopSignals:
    """Ctrl-C and SIGTERM while the `with` block runs. `once` is set by the first, `again` by the second; after the
    block further ones do nothing: stopping takes seconds at most, and half of it must not be left undone.
    """

    def __init__(self) -> None:
        self.once = asyncio.Event()
        self.again = asyncio.Event()

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._tell)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, lambda: None)

    def _tell(self) -> None:
        (self.again if self.once.is_set() else self.once).set()


async def save_last(link: WatchdogLink, within_s: float, again: asyncio.Event) -> str:
    """Have what was trained saved, unless `again` is set meanwhile; what that came to, for people."""
    saving = asyncio.create_task(link.save("the run is stopped by hand", within_s))
    giving_up = asyncio.create_task(again.wait())
    try:
        await asyncio.wait((saving, giving_up), return_when=asyncio.FIRST_COMPLETED)
        refused = saving.result() if saving.done() else "it was told to stop twice"
        return told(await link.status(), refused)
    except Unavailable as error:
        return told(None, str(error))
    finally:
        saving.cancel()
        giving_up.cancel()


def told(status: JobStatus | None, refused: str | None) -> str:
    """What is saved when the run stops, and what is lost; `refused` is why nothing was saved now, None: it was."""
    step = None if status is None else status.step
    newest = None if status is None or status.last_checkpoint is None else status.last_checkpoint.step
    if refused is None and newest is not None:
        return f"stopped; step {newest} is saved, and the same command goes on from there"
    if newest is not None and step is not None and step <= newest:
        return f"stopped; step {newest} was saved before, and the same command goes on from there"
    why = f"stopped; nothing was saved ({refused})"
    if newest is not None:
        lost = "the steps" if step is None else _steps(step - newest)
        return f"{why}: the same command goes on from step {newest}, and trains {lost} since then again"
    if step is None:
        return f"{why}: how much is lost is not known, since no step was told; the same command begins anew"
    return f"{why}: lost are {_steps(step)}; the same command begins anew"


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"
