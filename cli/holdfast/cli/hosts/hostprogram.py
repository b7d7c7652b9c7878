"""What runs on one host: an agent and a launcher, for as long as whoever holds the run is heard.

It ends with the launcher, and with its exit code. An end of the input ends both in good order, and so does
SIGTERM, which Slurm sends (scancel, a time limit, a preemption). Silence ends both as well: the holder's machine
is gone, and with it the watchdog, so nothing that breaks would be healed any more.
"""

import asyncio
import math
import shutil
import signal
import subprocess
import sys
import tempfile
from enum import Enum
from pathlib import Path
from typing import Final

from holdfast.api.decoding import decode_json
from holdfast.api.errors import HoldfastError, InvalidInput, Problem, Unavailable
from holdfast.cli.embedded.childprocess import ChildProcess
from holdfast.cli.hosts.task import SEEN_WITHIN_S, SILENCE_S, TASK_BYTES_MAX, HostTask
from holdfast.cli.output import ExitCode, exit_code_of, remark
from holdfast.wire.access import WATCHDOG_CA_VARIABLE

AGENT_PAUSE_S: Final = 1.0
POLL_S: Final = 1.0
_WHEN_ALONE_S: Final = 30.0


class Heard(Enum):
    """How hearing of the holder ended."""

    END = "the input ended"
    SILENCE = "nothing came"


def main() -> None:
    """The entry point. The first line of the input is the task."""
    try:
        sys.exit(asyncio.run(_run()))
    except HoldfastError as error:
        remark(str(error))
        sys.exit(exit_code_of(error))


async def _run() -> int:
    heard = asyncio.StreamReader(limit=TASK_BYTES_MAX)
    protocol = asyncio.StreamReaderProtocol(heard)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    try:
        line = await asyncio.wait_for(heard.readline(), SILENCE_S)
    except (TimeoutError, ValueError) as error:
        raise Unavailable("no task came over the standard input") from error
    task = decode_json(line, HostTask)
    run_dir = Path(tempfile.mkdtemp(prefix=f"holdfast-{task.host}-"))
    try:
        return await HostProgram(task, run_dir).run(heard)
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)


async def _listen(heard: asyncio.StreamReader) -> Heard:
    """Take beats until there are no more."""
    while True:
        try:
            async with asyncio.timeout(SILENCE_S):
                if not await heard.read(4096):
                    return Heard.END
        except TimeoutError:
            return Heard.SILENCE
        except OSError:
            return Heard.END


async def _told_to_end() -> None:
    """Until SIGTERM comes. A second one changes nothing: ending takes seconds."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()


def _content(file: Path) -> bytes:
    """Opened anew each time: then a network file system asks its server (close-to-open consistency)."""
    try:
        return file.read_bytes()
    except OSError:
        return b""


class HostProgram:
    """The two processes of one host, and their files, which are gone with it. `run_dir` is of this life alone."""

    def __init__(self, task: HostTask, run_dir: Path) -> None:
        """Raises InvalidInput where the job's folder is not on this host."""
        if not Path(task.directory).is_dir():
            fix = f"it is not there on {task.host}: put the job file into a folder that every host has"
            raise InvalidInput(Problem("job file", task.directory, fix))
        self._task = task
        self._run_dir = run_dir
        self._token_file = run_dir / "token"
        self._token_file.touch(mode=0o600)
        self._token_file.write_text(task.token)
        self._authority_file = run_dir / "watchdog.pem"
        self._authority_file.write_text(task.authority)

    async def run(self, heard: asyncio.StreamReader) -> int:
        """Until the launcher ends, or nobody is heard. Returns the exit code. Must be called in the event loop."""
        task = self._task
        folder = ("--log-dir", task.log_dir) if task.log_dir is not None else ()
        launcher = self._child(
            *("-m", "holdfast.agent.launch", "--member", task.host, "--node", task.host),
            *("--rdzv-endpoint", task.watchdog, "--rdzv-id", task.job),
            *("--nproc-per-node", str(task.local_size), "--token-file", str(self._token_file)),
            *("--run-dir", str(self._run_dir), *folder),
            *("--heartbeat-interval", str(task.heartbeat_interval_s)),
            *task.entrypoint,
        )
        keeping = asyncio.create_task(self._keep_agent())
        listening = asyncio.create_task(_listen(heard))
        told = asyncio.create_task(_told_to_end())
        try:
            await asyncio.wait((launcher.ended, listening, told), return_when=asyncio.FIRST_COMPLETED)
            if not launcher.ended.done() and not told.done() and listening.result() is Heard.SILENCE:
                remark(f"nothing was heard for {SILENCE_S:.0f} s: {task.host} stops, for nobody would heal it")
                await launcher.stop()
                await self._alone()
                return ExitCode.UNAVAILABLE
            code = await launcher.stop()
            return code if code >= 0 else 128 - code
        finally:
            for each in (keeping, listening, told):
                each.cancel()
            await asyncio.gather(keeping, listening, told, return_exceptions=True)

    async def _keep_agent(self) -> None:
        """Start it, and again when it has ended, until cancelled."""
        task = self._task
        simulated = ("--simulated-gpus", str(task.simulated_gpus)) if task.simulated_gpus else ()
        while True:
            agent = self._child(
                *("-m", "holdfast.agent", "--node", task.host, "--job", task.job),
                *("--run-dir", str(self._run_dir), "--watchdog", task.watchdog),
                *("--token-file", str(self._token_file), "--watchdog-ca-file", str(self._authority_file)),
                *("--kernel-log", task.kernel_log, *simulated, "--die-with-parent"),
            )
            try:
                await asyncio.shield(agent.ended)
            finally:
                await agent.stop()
            await asyncio.sleep(AGENT_PAUSE_S)

    async def _alone(self) -> None:
        """Do what is to be done when whoever held the run is gone; what that says goes to our output.

        Nothing is to be done while it lives: a host that froze for a while, or whose own way to the holder broke,
        was replaced meanwhile, and would end a run that is well.
        """
        if not self._task.when_alone:
            return
        if await self._sees_the_holder():
            remark(f"the run goes on without {self._task.host}: whoever holds it is alive")
            return
        try:
            await asyncio.to_thread(
                subprocess.run, self._task.when_alone, stdin=subprocess.DEVNULL, timeout=_WHEN_ALONE_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            remark(f"{' '.join(self._task.when_alone)}: {error}")

    async def _sees_the_holder(self) -> bool:
        """Whether its beat changes. False at once where no file system is shared."""
        if self._task.beat_file is None:
            return False
        beat = Path(self._task.beat_file)
        first = await asyncio.to_thread(_content, beat)
        for _ in range(math.ceil(SEEN_WITHIN_S / POLL_S)):
            await asyncio.sleep(POLL_S)
            if await asyncio.to_thread(_content, beat) != first:
                return True
        return False

    def _child(self, *arguments: str) -> ChildProcess:
        variables = {WATCHDOG_CA_VARIABLE: self._task.authority}
        return ChildProcess(
            (sys.executable, *arguments), log=None, directory=Path(self._task.directory), variables=variables
        )
