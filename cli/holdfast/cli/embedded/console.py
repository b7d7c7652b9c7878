"""The console of an embedded run: a process of its own beside the run, which goes on whatever becomes of it."""

import asyncio
import importlib.util
import sys
from collections.abc import Callable
from typing import Final

from holdfast.cli.embedded.childprocess import ChildProcess, exit_text
from holdfast.cli.statedirectory import StateDirectory, address_with_token

NEEDED: Final = ("fastapi", "numpy", "uvicorn")
LOOK_EVERY_S: Final = 0.1
# It takes time from the run's own processes only where nobody else wants it.
NICE: Final = ("nice", "-n", "10")


class ConsoleProcess:
    """Starts a console for the watchdog at `watchdog` and says where it is, or in one line why it is not."""

    def __init__(self, directory: StateDirectory, watchdog: str, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._watchdog = watchdog
        self._say = say
        self._process: ChildProcess | None = None

    async def run(self) -> None:
        """Until cancelled. Nothing that goes wrong with it ends the run."""
        missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            self._say("no console: pip install 'holdfast[console]' adds it; the run goes on without")
        else:
            await self._follow()
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """End it."""
        if self._process is not None:
            await self._process.stop()

    async def _follow(self) -> None:
        file = self._directory.console_file
        flags = ("--watchdog", self._watchdog, "--token-file", str(self._directory.token_file))
        files = ("--state-file", str(file), "--series-file", str(self._directory.series_file))
        words = (*flags, "--listen", "127.0.0.1:0", *files)
        try:
            file.unlink(missing_ok=True)
            process = self._process = ChildProcess(
                (*NICE, sys.executable, "-m", "holdfast.console", *words),
                log=self._directory.logs / "console.log",
                directory=self._directory.root,
            )
        except OSError as error:
            self._say(f"no console: {error}; the run goes on without")
            return
        while process.alive and self._directory.console_at() is None:
            await asyncio.wait((process.ended,), timeout=LOOK_EVERY_S)
        at = self._directory.console_at()
        if at is not None:
            # What is piped is kept, and a token is not to be kept.
            where = f"console: {address_with_token(self._directory, at)}" if sys.stderr.isatty() else None
            self._say(
                where or f"console: http://{at.host}:{at.port}/ ('holdfast console' prints it with its token)"
            )
        code = await asyncio.shield(process.ended)
        why = process.last_line().removeprefix("holdfast console: ") or exit_text(code)
        self._say(f"the console ended ({why}); the run goes on without")
