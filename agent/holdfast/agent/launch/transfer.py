"""The node's transfer server: a process that serves and copies the snapshots in the node's memory.

It is started when a round keeps snapshots in memory, and again whenever it dies: training does not notice, since
workers write to the node's memory themselves. Where there is no memory for it, training goes on without.
"""

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from holdfast.agent.launch.forkserver import ended
from holdfast.agent.launch.host import ReservedPorts
from holdfast.agent.launch.localset import MemoryPlace
from holdfast.agent.launch.memoryfolder import TOUCH_EVERY_S, MemoryFolder
from holdfast.agent.launch.processes import without_token
from holdfast.api.errors import Unavailable
from holdfast.api.round import Seat, Shown

log = logging.getLogger(__name__)

# Started as a command: its part of Holdfast is not imported here. -P: what lies in the working directory is the
# user's, and none of its modules.
COMMAND: Final = (sys.executable, "-P", "-m", "holdfast.checkpoint.memory")
_FIRST_DELAY_S: Final = 0.1
_DELAY_S_MAX: Final = 60.0
_CAME_UP_S: Final = 10.0  # one that dies sooner may never have served


class Transfer:
    """The server of one member. Use as an async context manager, around the life of the workers.

    Left in good order, the snapshots are removed: the launcher has ended for good. Left by an exception they stay
    for the launcher that is started next.
    """

    def __init__(
        self, folder: Path, address: str, environment: Mapping[str, str], *, command: Sequence[str] = COMMAND
    ) -> None:
        """Take the folder and a port of `address`. Where that fails it is said why.

        `port` is where the server listens whenever it runs, `place` what workers and peers are told: 0 and None
        where no snapshots can be kept.
        """
        self.port = 0
        self.place: MemoryPlace | None = None
        self._environment = environment
        self._command = tuple(command)
        self._folder: MemoryFolder | None = None
        self._ports: ReservedPorts | None = None
        self._key: str | None = None
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        try:
            self._ports = ReservedPorts(address, 1)
            self._folder = MemoryFolder.claim(folder)
            self.port = self._ports.numbers[0]
            self.place = MemoryPlace(str(folder), f"{address}:{self.port}")
        except Unavailable as error:
            log.warning("no snapshots in memory on this node, training goes on without reason=%s", error)

    def show(self, desired: Shown) -> None:
        """A round says whether snapshots are kept, and for which life of the job. Between rounds all stays."""
        if isinstance(desired, Seat) and self._folder is not None and self.place is not None:
            key = desired.restore.owner if self.place.part_in(desired) is not None else None
            if key is None:
                self._folder.clear()
            if key != self._key:
                self._key = key
                self._changed.set()

    async def __aenter__(self) -> Self:
        if self._folder is not None:
            self._tasks = [asyncio.create_task(each) for each in (self._keep(self._folder), _sweep(self._folder))]
            for task in self._tasks:
                task.add_done_callback(_tell_failure)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._folder is not None and kind is None:
            self._folder.remove()
        elif self._folder is not None:
            self._folder.leave()
        if self._ports is not None:
            self._ports.close()

    async def _keep(self, folder: MemoryFolder) -> None:
        """Have a server while one is wanted, until cancelled."""
        delay_s = 0.0
        while True:
            key = self._key
            if key is None:
                await self._until_not(None, folder)
                continue
            began = time.monotonic()
            status = await self._serve(key, folder)
            if self._key != key:
                continue
            if not delay_s or time.monotonic() - began > _CAME_UP_S:
                delay_s = _FIRST_DELAY_S
                log.warning("the transfer server ended, it is started again status=%s", status)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _DELAY_S_MAX)

    async def _serve(self, key: str, folder: MemoryFolder) -> int | str:
        """Run one server until it ends or another key is wanted; how it ended."""
        try:
            process = self._start(key, folder)
        except OSError as error:
            return f"not started ({error.strerror})"
        tasks = [asyncio.create_task(ended(process.pid)), asyncio.create_task(self._until_not(key, folder))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            process.kill()  # It has nothing to finish: what it had not copied whole counts for nobody.
            process.wait()
        return process.returncode

    def _start(self, key: str, folder: MemoryFolder) -> subprocess.Popen[bytes]:
        assert self._ports is not None
        own_pid = str(os.getpid())  # Told, since we may be gone before it looks who its parent is.
        arguments = ("--folder", str(folder.path), "--listen", self._ports.endpoints[0], "--parent", own_pid)
        process = subprocess.Popen(
            (*self._command, *arguments),
            env=without_token(self._environment),
            stdin=subprocess.PIPE,  # the key, which is written down nowhere
            start_new_session=True,
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(key.encode())
        return process

    async def _until_not(self, key: str | None, folder: MemoryFolder) -> None:
        """Return when another key is wanted; until then the folder is known to be in use."""
        while self._key == key:
            folder.touch()
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TOUCH_EVERY_S):
                    await self._changed.wait()


async def _sweep(folder: MemoryFolder) -> None:
    for path in await asyncio.to_thread(folder.sweep):
        log.info("removed the snapshots of a launcher that never came back folder=%s", path)


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the transfer server is not looked after any more", exc_info=error)
