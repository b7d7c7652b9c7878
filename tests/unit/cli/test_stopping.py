"""What is said of a run that is stopped by hand."""

import asyncio
from typing import cast

import pytest

from holdfast.api.errors import Unavailable
from holdfast.api.status import Checkpoint, JobPhase, JobStatus, Membership
from holdfast.cli.embedded.stopping import save_last, told
from holdfast.cli.embedded.watchdog import WatchdogLink

WHY = "the script does not use holdfast.trainer, so nothing can be asked of it"


def status(step: int | None, saved: int | None) -> JobStatus:
    newest = None if saved is None else Checkpoint(saved, 1, "file:///c", 10.0)
    none = (None, None, 0, 0, 0, 0)
    return JobStatus("default/j", JobPhase.RUNNING, "", 1, Membership(1, 1, 0), 1, step, *none, newest, (), 20.0)


@pytest.mark.parametrize(
    ("step", "saved", "refused", "says"),
    [
        (150, 150, None, "stopped; step 150 is saved, and the same command goes on from there"),
        (151, 150, None, "stopped; step 150 is saved, and the same command goes on from there"),
        (140, 140, WHY, "stopped; step 140 was saved before, and the same command goes on from there"),
        (150, 140, WHY, f"stopped; nothing was saved ({WHY}): the same command goes on from step 140, and trains "
                        "10 steps since then again"),
        (None, 140, WHY, f"stopped; nothing was saved ({WHY}): the same command goes on from step 140, and trains "
                         "the steps since then again"),
        (1, None, WHY, f"stopped; nothing was saved ({WHY}): lost are 1 step; the same command begins anew"),
        (None, None, WHY, f"stopped; nothing was saved ({WHY}): how much is lost is not known, since no step was "
                          "told; the same command begins anew"),
    ],
)  # fmt: skip
def test_it_says_what_is_saved_and_what_is_lost(
    step: int | None, saved: int | None, refused: str | None, says: str
) -> None:
    assert told(status(step, saved), refused) == says


class Link:
    """A link whose watchdog never commits, or is away."""

    def __init__(self, *, away: bool = False) -> None:
        self.away = away

    async def save(self, reason: str, within_s: float) -> str | None:
        if self.away:
            raise Unavailable("it is away")
        await asyncio.Event().wait()
        return None

    async def status(self) -> JobStatus:
        return status(7, None)


async def test_a_second_signal_ends_the_wait_at_once() -> None:
    again = asyncio.Event()
    again.set()
    says = await save_last(cast("WatchdogLink", Link()), 1e6, again)
    assert says.startswith("stopped; nothing was saved (it was told to stop twice): lost are 7 steps")


async def test_a_watchdog_that_is_away_keeps_nobody() -> None:
    says = await save_last(cast("WatchdogLink", Link(away=True)), 30.0, asyncio.Event())
    assert says.startswith("stopped; nothing was saved (it is away): how much is lost is not known")
