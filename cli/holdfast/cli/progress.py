"""How far a long read is, on a terminal's stderr."""

import sys
import threading

import click


class Progress:
    """A line that is written anew for every hundredth of `total_bytes`; nothing where nobody watches."""

    def __init__(self, what: str, total_bytes: int) -> None:
        self._what = what
        self._total = max(total_bytes, 1)
        self._done = 0
        self._shown = -1
        self._lock = threading.Lock()
        self._is_watched = sys.stderr.isatty()

    def add(self, size_bytes: int) -> None:
        """From any thread."""
        with self._lock:
            self._done += size_bytes
            percent = min(100 * self._done // self._total, 100)
            if self._is_watched and percent != self._shown:
                self._shown = percent
                click.echo(f"\r{self._what}  {percent} %", nl=False, err=True)

    def end(self) -> None:
        """Leave the line to what is written next."""
        if self._is_watched and self._shown >= 0:
            click.echo("\r\033[K", nl=False, err=True)
