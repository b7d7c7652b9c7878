"""Looks at the run a few times a second until it is over."""

import asyncio
from typing import Final, Protocol

from holdfast.api.errors import Unavailable
from holdfast.api.status import JobPhase
from holdfast.cli.embedded.link import WatchdogLink
from holdfast.cli.view.picture import Picture

LOOK_INTERVAL_S: Final = 0.2
OVER = (JobPhase.SUCCEEDED, JobPhase.FAILED)


class Audience(Protocol):
    """Who watches a run."""

    def say(self, text: str) -> None:
        """Something happened that the watchdog does not know of, in one sentence."""
        ...

    def look(self, picture: Picture) -> None:
        """A new picture of the run; called several times a second."""
        ...


async def follow(link: WatchdogLink, audience: Audience) -> Picture:
    """Show every picture to `audience` until the job is over; returns the last one."""
    picture: Picture | None = None
    while True:
        picture = await _look(link, picture)
        if picture is not None:
            audience.look(picture)
            if picture.status.phase in OVER:
                return picture
        await asyncio.sleep(LOOK_INTERVAL_S)


async def _look(link: WatchdogLink, before: Picture | None) -> Picture | None:
    """The newest picture, the one before while the watchdog is away."""
    try:
        status = await link.status()
        if status is None:
            return before
        return Picture(status, await link.ranks(), await link.incidents())
    except Unavailable:
        return before
