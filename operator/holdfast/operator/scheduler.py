"""Keeps every job looked at: when something of it changed, when its time has come, and now and then anyway."""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final, NoReturn

from holdfast.api.bounds import WHOLE_MAX
from holdfast.api.errors import Fenced, HoldfastError
from holdfast.operator.controller import Controller
from holdfast.operator.decide.observed import Mode
from holdfast.operator.kube.clusterview import ClusterView
from holdfast.operator.kube.worklist import Worklist
from holdfast.operator.metrics import Metrics
from holdfast.operator.watchdog import JobLine, Watchdog

logger = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 8


@dataclass(frozen=True)
class Line:
    """A job's line, and the task that holds it."""

    uid: str
    line: JobLine
    task: "asyncio.Task[NoReturn]"


@dataclass
class Scheduler:
    """Use `run`; `node_changed` may be called at any time. Each job is looked at every `resync_s` at least."""

    view: ClusterView
    worklist: Worklist
    controller: Controller
    watchdog: Watchdog
    metrics: Metrics
    resync_s: float
    _lines: dict[str, Line] = field(default_factory=dict, init=False)
    _troubles: dict[str, str] = field(default_factory=dict, init=False)

    @property
    def connected(self) -> int:
        """Jobs with a line to the watchdog."""
        return sum(1 for each in self._lines.values() if each.line.connected)

    def node_changed(self, node: str) -> None:
        """The jobs that run there are to be looked at, and those whose plan names it."""
        named = [key for key, each in self._lines.items() if node in each.line.nodes]
        for key in {*named, *self.view.jobs_on(node)}:
            self.worklist.add(key)

    async def run(self) -> NoReturn:
        """Until cancelled, or Fenced is raised."""
        free = asyncio.Semaphore(AT_ONCE_MAX)
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await free.acquire()
                    key = await self.worklist.take()
                    group.create_task(self._work(key)).add_done_callback(lambda _: free.release())
        except* Fenced as fenced:
            raise fenced.exceptions[0] from None
        finally:
            await self._hang_up(*self._lines)

    async def _work(self, key: str) -> None:
        with self.metrics.reconcile_seconds.time():
            try:
                result = await self._look(key)
            except Fenced:
                raise
            except HoldfastError as error:
                result, wait_s = "trouble", self.worklist.failed(key)
                if self._troubles.get(key) != str(error):
                    self._troubles[key] = str(error)
                    says = "cannot do everything for a job job=%s again_in_s=%.1f error=%s"
                    logger.warning(says, key, wait_s, error)
            except Exception:  # one job's surprise must not stop the others
                result = "error"
                logger.exception("cannot look at a job job=%s", key)
                self.worklist.failed(key)
        self.metrics.reconciles.labels(result).inc()

    async def _look(self, key: str) -> str:
        job = self.view.job(key)
        if job is None:
            # Whoever took our finalizer away kept the watchdog from hearing of it.
            if key in self._lines and self.controller.options.mode is Mode.ACT:
                await self.watchdog.forget(key)
            await self._hang_up(key)
            self.controller.forget(key)
            self._troubles.pop(key, None)
            self.worklist.drop(key)
            return "gone"
        # A line of its own for every job, also for one that took another's name.
        held = self._lines.get(key)
        if held is None or held.uid != job.metadata.uid:
            await self._hang_up(key)
            clock = asyncio.get_running_loop().time
            line = JobLine(self.watchdog, key, lambda: self.worklist.add(key), clock, lambda: self._round_of(key))
            held = self._lines[key] = Line(job.metadata.uid, line, asyncio.create_task(line.run()))
        again_s = await self.controller.look(job, held.line)
        if self._troubles.pop(key, None) is not None:
            logger.info("the trouble is over job=%s", key)
        self.worklist.done(key, min(again_s or self.resync_s, self.resync_s))
        return "done"

    def _round_of(self, key: str) -> int | None:
        """The newest round that the job's status tells of, None without one."""
        job = self.view.job(key)
        found = job.recorded().round if job is not None else None
        return found if found is not None and 0 <= found <= WHOLE_MAX else None

    async def _hang_up(self, *keys: str) -> None:
        tasks = [self._lines.pop(key).task for key in keys if key in self._lines]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
