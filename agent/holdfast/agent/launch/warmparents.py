"""The warm parents of a launcher: one that has imported torch, and beside it one with what the script needs too.

The plain one is there within seconds and always. The other is made once it is known what the script imports; a
worker is forked from it when it is ready and no package has been installed anew since. One that is wanted while it
imports a list that is proven waits for it, `IMPORTING_S` at most: it would import the same by itself, begin later,
and take the processors from it. What goes wrong with it costs a line in the log: workers then start from the plain
one.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from holdfast.agent.launch import forking
from holdfast.agent.launch.forkserver import ForkServer
from holdfast.agent.launch.preload import PreloadList, read_list, stamp_of, trying_file, write_list
from holdfast.agent.launch.settings import Entrypoint

log = logging.getLogger(__name__)

IMPORTING_S: Final = 30.0
"""A parent may import for so long before workers are forked without it; for transformers 35 s were seen."""


def list_file(run_dir: Path, number: int) -> Path:
    """What the `number`th parent beside the plain one is to import. Each has a file of its own: one that is
    replaced may write into it for a moment more.
    """
    return run_dir / f"preload-{number}.json"


class WarmParents:
    """Forks workers from the best parent there is, and passes on what the parents say, as `ForkServer` does."""

    def __init__(
        self,
        *,
        entrypoint: Entrypoint,
        environment: Mapping[str, str],
        run_dir: Path,
        on_message: Callable[[forking.FromWarmParent], None],
        on_left: Callable[[PreloadList], None],
    ) -> None:
        """`on_left` is told the list as it is when a parent has worked through it: with what it had to leave."""
        self._preload = preload = forking.preload_for(entrypoint.kind)
        self._argv = entrypoint.argv  # as the script's packages find it in `sys.argv`
        self._environment = environment
        self._on_message = on_message
        self._on_left = on_left
        self._run_dir = run_dir
        self._made = 0
        self._list = list_file(run_dir, 0)
        self._plain = ForkServer(preload=preload, environment=environment, on_message=on_message)
        self._seasoned: ForkServer | None = None
        self._held: list[forking.Fork] = []  # asked for, and to be forked by the better parent to come
        self._hurry: asyncio.TimerHandle | None = None  # waits until that has taken too long
        self._running: dict[ForkServer, asyncio.Task[None]] = {}

    @property
    def is_warm(self) -> bool:
        """Whether workers can be forked without importing torch."""
        return self._plain.is_warm

    def fork(self, request: forking.Fork) -> None:
        """Ask for a worker."""
        self._held.append(request)
        self._fork_held()

    def fork_plain(self, request: forking.Fork) -> None:
        """Ask for a process that needs torch alone."""
        self._plain.fork(request)

    def kill(self, pid: int) -> None:
        """SIGKILL a worker and its process group. Each parent knows its own workers, and ignores others."""
        for parent in (self._plain, *self._running):
            parent.kill(pid)

    def dump(self, pid: int) -> None:
        """Have a worker write where its threads are."""
        for parent in (self._plain, *self._running):
            parent.dump(pid)

    def season(self, wanted: PreloadList) -> None:
        """Make a parent that imports this, in place of one that imports something else.

        Nothing happens where no parent is of use, or where nothing is wanted.
        """
        if self._preload is forking.Preload.NOTHING or not wanted.units():
            return
        if self._seasoned is not None and read_list(self._list) == wanted:
            return
        path = list_file(self._run_dir, self._made + 1)
        try:
            trying_file(path).unlink(missing_ok=True)  # of a launcher before, in the same directory
            write_list(path, wanted)
        except OSError as error:
            log.warning("no list of what to import beforehand can be written error=%s", error)
            return
        self._retire()
        self._made, self._list = self._made + 1, path
        parent = ForkServer(
            preload=self._preload,
            environment=self._environment,
            on_message=partial(self._hear, path),
            wanted=path,
            argv=self._argv,
        )
        self._seasoned = parent
        self._running[parent] = task = asyncio.create_task(parent.run())
        task.add_done_callback(lambda _: _remove(path))
        if wanted.proven:
            self._hurry = asyncio.get_running_loop().call_later(IMPORTING_S, self._wait_no_longer)

    async def run(self) -> None:
        """Keep the parents running until cancelled; then end them with all their workers."""
        try:
            await self._plain.run()
        finally:
            self._forget_hurry()
            tasks = tuple(self._running.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _fork_held(self) -> None:
        """Fork what is asked for, unless a parent that need not import anything more is about to be ready."""
        if self._hurry is not None:
            return
        held, self._held = self._held, []
        for request in held:
            self._best().fork(request)

    def _wait_no_longer(self) -> None:
        self._forget_hurry()
        if self._held:
            log.warning("workers start without what is imported beforehand: that takes over %.0f s", IMPORTING_S)
        self._fork_held()

    def _forget_hurry(self) -> None:
        if self._hurry is not None:
            self._hurry.cancel()
            self._hurry = None

    def _best(self) -> ForkServer:
        parent = self._seasoned
        if parent is None or parent.ready is None or not parent.is_warm:
            return self._plain
        if stamp_of(parent.ready.files) == parent.ready.stamp:
            return parent
        log.info("a package was installed anew: what was imported before is not used")
        self._retire()
        self.season(msgspec.structs.replace(read_list(self._list), proven=False))
        return self._plain

    def _hear(self, path: Path, message: forking.FromWarmParent) -> None:
        """Of a parent beside the plain one: whether it is ready is no news to anybody else."""
        if isinstance(message, forking.Ready):
            if path != self._list:
                return  # it was replaced meanwhile
            wanted = read_list(path)
            for unit, why in wanted.left.items():
                log.info("not imported beforehand package=%s because=%s", unit, why)
            log.info("imported beforehand modules=%d reason=%s", message.loaded, message.reason)
            self._on_left(wanted)
            self._forget_hurry()
            self._fork_held()
            return
        self._on_message(message)
        if isinstance(message, forking.GroupGone):
            for parent in tuple(self._running):
                if parent is not self._seasoned:
                    self._end_if_idle(parent)

    def _retire(self) -> None:
        """Fork no more from the parent beside the plain one; it ends with the last of its workers, not before."""
        if (parent := self._seasoned) is not None:
            self._seasoned = None
            self._forget_hurry()
            self._end_if_idle(parent)

    def _end_if_idle(self, parent: ForkServer) -> None:
        if parent.is_idle and (task := self._running.pop(parent, None)) is not None:
            task.cancel()


def _remove(path: Path) -> None:
    for each in (path, trying_file(path)):
        with contextlib.suppress(OSError):
            each.unlink()
