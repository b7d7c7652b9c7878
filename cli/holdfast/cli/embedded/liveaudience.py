"""Watching a run on a terminal that is redrawn in place."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.live import Live

from holdfast.cli.view.live import screen
from holdfast.cli.view.news import news
from holdfast.cli.view.picture import Picture

MESSAGES_SHOWN = 8


class LiveAudience:
    """Draws the newest picture. Entered as a context, it owns the terminal until it is left."""

    def __init__(self, clock: Callable[[], float], steps: int) -> None:
        self._clock = clock
        self._started_at = clock()
        self._steps = steps
        self._picture: Picture | None = None
        self._messages: deque[str] = deque(maxlen=MESSAGES_SHOWN)
        self._live = Live(console=Console(stderr=True), auto_refresh=False)

    @contextlib.contextmanager
    def on_stage(self) -> Iterator[None]:
        """Hold the terminal."""
        with self._live:
            yield

    def say(self, text: str) -> None:
        self._messages.append(f"{self._clock() - self._started_at:6.1f}s  {text}")
        self._draw()

    def look(self, picture: Picture) -> None:
        for line in news(self._picture, picture):
            self._messages.append(f"{self._clock() - self._started_at:6.1f}s  {line}")
        self._picture = picture
        self._draw()

    def _draw(self) -> None:
        elapsed_s = self._clock() - self._started_at
        drawn = screen(self._picture, tuple(self._messages), elapsed_s=elapsed_s, steps=self._steps)
        self._live.update(drawn, refresh=True)
