"""Starts real launchers, and looks at the processes they leave."""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from fake_watchdog import JOB, TOKEN
from patience import patient

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass
class Node:
    """One launcher process and its folder."""

    process: asyncio.subprocess.Process
    folder: Path
    output: Path

    def log(self, rank: int, round_: int) -> Path:
        return self.folder / "logs" / f"rank-{rank:05d}.round-{round_:04d}.log"

    def descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    async def wait(self, timeout_s: float = 15.0) -> int:
        return await asyncio.wait_for(self.process.wait(), patient(timeout_s))


@dataclass
class Nodes:
    """The launchers of one test; whatever they started is gone after `close`."""

    folder: Path
    started: list[Node] = field(default_factory=list)
    seen: list[psutil.Process] = field(default_factory=list)

    async def start(
        self,
        member: str,
        endpoint: str,
        *entrypoint: str,
        local_size: int = 1,
        flags: Sequence[str] = (),
        token: str = TOKEN,
        confined: bool = False,
        prefix: Sequence[str] = (),
    ) -> Node:
        """`confined`: as a pod may be, see `confinement`. `prefix`: a command that starts the launcher."""
        folder = self.folder / member
        folder.mkdir(exist_ok=True)
        output = folder / "launcher.txt"
        command = [*prefix, *(confinement(folder) if confined else [])]
        command += [sys.executable, "-m", "holdfast.agent.launch", "--member", member, "--node", member]
        command += ["--rdzv-endpoint", endpoint, "--rdzv-id", JOB, "--nproc-per-node", str(local_size)]
        command += ["--run-dir", str(folder), "--log-dir", str(folder / "logs"), "--heartbeat-interval", "0.1"]
        command += ["--memory-dir", str(folder)]
        with output.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                *flags,
                *entrypoint,
                env={**os.environ, "HOLDFAST_TOKEN": token, "OUT": str(folder)},
                stdout=log,
                stderr=log,
            )
        node = Node(process, folder, output)
        self.started.append(node)
        return node

    async def close(self) -> None:
        for node in self.started:
            self.seen += node.descendants()
            if node.process.returncode is None:
                node.process.kill()
                await node.process.wait()
        await no_process_left(self.seen)


def confinement(folder: Path) -> list[str]:
    """What runs a command as a pod may run it: an unknown user, no home, and only `folder` can be written."""
    mounts = 'mount --bind "$0" "$0" && mount -o remount,ro,bind / && cd /'
    user = "env -u TMPDIR HOME=/nonexistent unshare --user --map-user=12345 --map-group=12345"
    return ["unshare", "--mount", "sh", "-c", f'{mounts} && exec {user} "$@"', str(folder)]


async def no_process_left(processes: Sequence[psutil.Process], timeout_s: float = 30.0) -> None:
    """Fail unless all of `processes` end in time."""
    give_up = time.monotonic() + patient(timeout_s)
    while alive := [process for process in processes if is_alive(process)]:
        if time.monotonic() > give_up:
            raise AssertionError(f"processes left behind: {alive}")
        await asyncio.sleep(0.01)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def line_in(path: Path, text: str = "", timeout_s: float = 60.0) -> str:
    """The first whole line of `path` that contains `text`, waited for."""
    async with asyncio.timeout(patient(timeout_s)):
        while True:
            if path.exists():
                for line in path.read_text().splitlines(keepends=True):
                    if text in line and line.endswith("\n"):
                        return line.rstrip("\n")
            await asyncio.sleep(0.01)
