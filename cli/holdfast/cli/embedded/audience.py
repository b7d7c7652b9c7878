"""Who watches a run: looked at a few times a second until it is over, and told line by line."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import click

from holdfast.api.errors import Unavailable
from holdfast.api.status import JobPhase
from holdfast.cli.embedded.link import WatchdogLink
from holdfast.cli.view.news import Picture, news, progress

POLL_INTERVAL_S: Final = 0.2
PROGRESS_INTERVAL_S: Final = 5.0
OVER: Final = (JobPhase.SUCCEEDED, JobPhase.FAILED)


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
        try:
            if (status := await link.status()) is not None:
                picture = Picture(status, await link.ranks(), await link.incidents())
        except Unavailable:
            pass  # the watchdog is away: the picture before stays
        if picture is not None:
            audience.look(picture)
            if picture.status.phase in OVER:
                return picture
        await asyncio.sleep(POLL_INTERVAL_S)


class LineAudience:
    """Writes what happens to stderr, one line each, with the seconds since the start."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started_at = clock()
        self._last: Picture | None = None
        self._progress_at = clock()
        self._progress_step: int | None = None

    def say(self, text: str) -> None:
        click.echo(f"{self._clock() - self._started_at:7.1f}s  {text}", err=True)

    def look(self, picture: Picture) -> None:
        for line in news(self._last, picture):
            self.say(line)
        self._last = picture
        now, step = self._clock(), picture.status.step
        is_time = now - self._progress_at >= PROGRESS_INTERVAL_S
        if is_time and picture.status.phase is JobPhase.RUNNING and step not in (None, self._progress_step):
            self._progress_at, self._progress_step = now, step
            self.say(progress(picture))
