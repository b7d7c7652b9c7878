"""Watching a run line by line: for logs, pipes and people who like it plain."""

from collections.abc import Callable
from typing import Final

import click

from holdfast.api.status import JobPhase
from holdfast.cli.view.news import news, progress
from holdfast.cli.view.picture import Picture

PROGRESS_INTERVAL_S: Final = 5.0


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
