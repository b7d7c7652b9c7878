"""The trackers' program of an embedded run: started where the job is published, and again when it dies."""

import asyncio
import sys
from collections.abc import Callable
from typing import Final

from holdfast.cli.embedded.childprocess import ChildProcess, exit_text
from holdfast.cli.statedirectory import StateDirectory

FINISH_S: Final = 40.0
"""How long the end of a run waits for trackers. What they do not take by then lies in the state directory."""
RESTART_S: Final = 1.0
_WRONG: Final = 2


class Publishing:
    """One job's. Unless it is `wanted` nothing is started, and there is nothing to finish."""

    def __init__(
        self, directory: StateDirectory, watchdog: str, job: str, say: Callable[[str], None], *, wanted: bool
    ) -> None:
        self._directory = directory
        self._watchdog = watchdog
        self._job = job
        self._say = say
        self._wanted = wanted
        self._process: ChildProcess | None = None
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Keep it running, until it ends because the job is over and published; then wait to be cancelled."""
        while self._wanted and not self._over.is_set():
            self._process = self._start()
            code = await asyncio.shield(self._process.ended)
            if code in (0, _WRONG):
                self._over.set()
            if code:
                words = self._process.last_line() or exit_text(code)
                self._say(f"the job is not published, training goes on: {words}; see {self._process.log}")
                await asyncio.sleep(RESTART_S)
        await asyncio.Event().wait()

    def _start(self) -> ChildProcess:
        directory = self._directory
        return ChildProcess(
            (
                sys.executable,
                *("-m", "holdfast.console.trackers", "--job", self._job, "--watchdog", self._watchdog),
                *("--token-file", str(directory.token_file), "--folder", str(directory.trackers)),
                *("--event-files", str(directory.event_files), "--allow", "*", "--die-with-parent"),
            ),
            log=directory.logs / "trackers.log",
            directory=directory.root,
        )

    async def finish(self) -> None:
        """The job is over: let the last of it be published."""
        if not self._wanted:
            return
        try:
            await asyncio.wait_for(self._over.wait(), FINISH_S)
        except TimeoutError:
            self._say(f"not everything is published yet; see {self._directory.logs / 'trackers.log'}")

    async def stop(self) -> None:
        """End it. It brings out what it can in a moment, and the rest waits for the next run."""
        if self._process is not None and self._process.alive:
            await self._process.stop()
