"""One job's place in the program: what the watchdog says of it goes onto its spool, and its publisher runs.

The publisher is a process of its own, with this job's credentials alone. One that dies is started again; one that
has brought out the end of the job is not, unless the job goes on.
"""

import asyncio
import hashlib
import logging
import shutil
import sys
import time
import uuid
from pathlib import Path
from typing import Final

import msgspec

from holdfast.api.bulletin import Bulletin
from holdfast.api.errors import HoldfastError
from holdfast.api.feed import IncidentTold, JobTold, PlacesTold, StepsTold
from holdfast.api.policy import ReportingPolicy
from holdfast.console.trackers.composing import Composer, Memory
from holdfast.console.trackers.courier import CursorFile
from holdfast.console.trackers.credentials import Credentials
from holdfast.console.trackers.publisher import REST_S, Task
from holdfast.console.trackers.records import Ended, Note, Row
from holdfast.console.trackers.settings import TrackerSettings
from holdfast.console.trackers.spool import SpoolWriter
from holdfast.wire.backoff import Backoff

logger = logging.getLogger(__name__)

STOP_S: Final = REST_S + 10.0
RESTART_FIRST_S: Final = 1.0
RESTART_MOST_S: Final = 300.0
KEPT_S: Final = 30 * 86400.0
"""How long a spool outlives its job where a tracker took none of it."""

Said = JobTold | PlacesTold | StepsTold | IncidentTold


def folder_of(root: Path, job: str, uid: str) -> Path:
    """Where the job's spool lies; of another job of the same name another one."""
    return root / f"{job.replace('/', '.')}{f'-{uid}' if uid else ''}"


def run_key(folder: Path, job: str, uid: str) -> str:
    """What names the job's run for ever: made of its uid, or else kept in `folder`. Raises OSError."""
    if uid:
        return hashlib.sha256(f"{job} {uid}".encode()).hexdigest()[:20]
    file = folder / "run.key"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(uuid.uuid4().hex[:20])
    return file.read_text().strip()


def sweep(root: Path, now: float) -> None:
    """Remove the spools that nothing was written to for KEPT_S before `now` (wall clock): their jobs are gone."""
    for folder in {path.parent for path in root.glob("*/*.spool")}:
        if now - max(path.stat().st_mtime for path in folder.glob("*.spool")) > KEPT_S:
            logger.warning("a spool is removed, its job is gone and no tracker took it folder=%s", folder)
            shutil.rmtree(folder, ignore_errors=True)


class Desk:
    """`bulletin` is the first of the job. Raises OSError when the spool cannot be made."""

    def __init__(self, bulletin: Bulletin, settings: TrackerSettings, credentials: Credentials) -> None:
        assert bulletin.reporting is not None
        self.job = bulletin.job
        self.uid = bulletin.uid
        self.reporting: ReportingPolicy = bulletin.reporting
        self._credentials = credentials
        self._folder = folder_of(settings.folder, self.job, self.uid)
        self._spool = SpoolWriter(self._folder, bytes_max=settings.spool_bytes)
        self._composer = Composer(_memory(self._spool))
        self._told: list[Row | Note | Ended] = []
        self._task = Task(
            job=self.job,
            key=run_key(self._folder, self.job, self.uid),
            reporting=self.reporting,
            spool=str(self._folder),
            event_files=str(folder_of(settings.event_files, self.job, self.uid)),
            allowed_hosts=settings.allowed_hosts,
        )
        self._process: asyncio.subprocess.Process | None = None
        self._backoff = Backoff(RESTART_FIRST_S, RESTART_MOST_S)
        self._start_at = 0.0
        self._rests = False
        self._is_out = False  # everything, of every tracker that takes anything, when the publisher ended
        self._done = False  # the end of the job is out, or waits for a tracker that is away
        self._trouble = ""

    @property
    def after(self) -> tuple[int, str]:
        """The newest message of what scripts logged that was taken, and of which life of the watchdog."""
        return self._composer.memory.after, self._composer.memory.life

    @property
    def is_done(self) -> bool:
        """Whether the job is over, and its publisher has brought out what it could."""
        return self._done

    def hear(self, said: Said, now: float) -> None:
        """What the feed says of the job."""
        match said:
            case JobTold():
                self._composer.described(said, now)
            case PlacesTold():
                self._composer.placed(said)
            case StepsTold():
                self._told += self._composer.stepped(said, now)
            case IncidentTold():
                self._told += self._composer.happened(said.incident)

    def announce(self, bulletin: Bulletin, at: float, now: float) -> None:
        """What the bulletin says of the job, `at` by the watchdog's clock."""
        self._told += self._composer.announced(bulletin, at, now)

    def write(self, now: float) -> None:
        """Put what was told onto the spool. While the disk takes nothing it waits here, the newest of it."""
        ended, mark = self._composer.mark(now)
        told = (*self._told, *ended)
        before = self._spool.mark
        is_news = before is None or (before.heard, before.final) != (mark.heard, mark.final)
        if not told and not is_news:
            return
        try:
            self._spool.append(told, mark)
        except OSError as error:
            self._say_once(f"the spool takes nothing: {error}")
            self._told = [*self._told, *ended][-WAITING_MAX:]
            return
        self._told.clear()
        if told and not ended:
            self._rests = self._done = False
        self._spool.trim(self._taken())

    def _taken(self) -> int:
        """Every tracker has the records before this one."""
        cursors = [CursorFile(path).read().next for path in self._folder.glob("*.cursor")]
        targets = (self.reporting.wandb, self.reporting.mlflow, self.reporting.tensorboard, self.reporting.webhook)
        return min(cursors) if cursors and len(cursors) >= sum(map(bool, targets)) else 0

    async def attend(self, now: float) -> None:
        """Keep the publisher running; let it rest once the end of the job is on the spool."""
        if self._process is not None and self._process.returncode is not None:
            code, self._process = self._process.returncode, None
            self._is_out = code == 0
            if self._rests:
                self._done = True
            else:
                self._start_at = now + self._backoff.next_s()
                logger.warning("a publisher ended, starting it again job=%s code=%d", self.job, code)
        if self._process is None and not self._done and now >= self._start_at:
            await self._start()
        if self._process is not None and self._composer.has_ended and not self._rests:
            self._rests = True
            self._close_input()

    async def _start(self) -> None:
        namespace = self.job.partition("/")[0]
        try:
            environment = await self._credentials.environment(namespace, self.reporting.secret)
        except HoldfastError as error:
            self._start_at = time.monotonic() + self._backoff.next_s()
            self._say_once(f"the credentials cannot be read: {error}")
            return
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "holdfast.console.trackers.publisher"),
            stdin=asyncio.subprocess.PIPE,
            env={"HOME": str(self._folder), **environment},
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(self._task) + b"\n")
        self._process = process
        self._rests = False

    def _close_input(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def stop(self) -> None:
        """End the publisher: it brings out what it can in a moment, the rest stays on the spool."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()
        self._is_out = process.returncode == 0

    async def retire(self) -> None:
        """The job is gone for good: end the publisher, and forget what it has brought out. What it has not stays
        where it is, KEPT_S at most.
        """
        await self.stop()
        if self._is_out:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _say_once(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            logger.warning("%s job=%s", trouble, self.job)


def _memory(spool: SpoolWriter) -> Memory:
    """What the composer before wrote down; nothing of a version that wrote something else."""
    try:
        return msgspec.msgpack.decode(spool.mark.memory, type=Memory) if spool.mark is not None else Memory()
    except msgspec.MsgspecError as error:
        logger.warning("what was told before cannot be read, it is told anew reason=%s", error)
        return Memory()


WAITING_MAX: Final = 10_000
"""Records that wait in memory at most while the disk is full."""
