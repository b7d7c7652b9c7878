"""The watchdog of an embedded run, as a process that is started again when it dies."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from typing import Final

from holdfast.api.errors import Unavailable
from holdfast.cli.embedded.childprocess import ChildProcess, exit_text
from holdfast.cli.statedirectory import ListeningAt, StateDirectory

LISTENING_WITHIN_S: Final = 20.0  # it needs half a second; a busy machine may take its time
POLL_INTERVAL_S: Final = 0.02
DEATHS_MAX: Final = 5  # in a row, each within LISTENING_WITHIN_S of its start


class WatchdogProcess:
    """Keeps one watchdog running on one port, so that launchers and agents find it again after its death."""

    def __init__(self, directory: StateDirectory, listen: str, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._listen = listen
        self._say = say
        self._process: ChildProcess | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.alive else None

    async def start(self) -> ListeningAt:
        """Start it and wait until it listens. Raises Unavailable with its last words when it does not."""
        store, token = str(self._directory.store_file), str(self._directory.token_file)
        files = ("--store", store, "--token-file", token)
        process = ChildProcess(
            "watchdog",
            (sys.executable, "-m", "holdfast.watchdog", "--listen", self._listen, *files),
            log=self._directory.logs / "watchdog.log",
            directory=self._directory.root,
        )
        self._process = process
        deadline = time.monotonic() + LISTENING_WITHIN_S
        while process.alive and time.monotonic() < deadline:
            at = self._directory.listening_at()
            if at is not None and at.pid == process.pid:
                self._listen = f"{at.host}:{at.port}"
                return at
            await asyncio.wait((process.ended,), timeout=POLL_INTERVAL_S)
        if process.alive:
            await process.stop()
            raise Unavailable(f"the watchdog did not listen within {LISTENING_WITHIN_S:.0f} s; see {process.log}")
        words = process.last_line().removeprefix("holdfast watchdog: ")
        raise Unavailable(
            words or f"the watchdog ended with {exit_text(process.ended.result())}; see {process.log}"
        )

    async def supervise(self) -> None:
        """Start it again whenever it dies, until cancelled. Raises Unavailable when it keeps dying."""
        deaths = 0
        while True:
            assert self._process is not None
            started_at = time.monotonic()
            code = await asyncio.shield(self._process.ended)
            deaths = deaths + 1 if time.monotonic() - started_at < LISTENING_WITHIN_S else 1
            if deaths > DEATHS_MAX:
                words = self._process.last_line()
                raise Unavailable(f"the watchdog died {deaths} times in a row, the last words: {words}")
            self._say(f"the watchdog ended with {exit_text(code)}; starting it again, training goes on meanwhile")
            await asyncio.sleep(0.05 * 2 ** (deaths - 1))
            # A start that fails counts as one more death: the next turn sees the ended process.
            with contextlib.suppress(Unavailable):
                await self.start()

    async def stop(self) -> None:
        """End it."""
        if self._process is not None:
            await self._process.stop()
