"""One local node: an agent and a launcher, everything below them, and its memory."""

import asyncio
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from holdfast.agent.launch import memoryfolder
from holdfast.api.drill import DRILL_FILE, Drill
from holdfast.cli.embedded.childprocess import ChildProcess, descendants, send
from holdfast.cli.statedirectory import StateDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What every node of a run is started with. `entrypoint` is what the launcher takes as its arguments.

    `relayed`: the way to the watchdog goes by a relay of the node's own, so that it can be cut.

    `variables` are added to the environment of its processes; `drills` are what self-tests go wrong by, by node.
    """

    job: str
    directory: StateDirectory
    watchdog: str
    local_size: int
    entrypoint: tuple[str, ...]
    working_directory: Path
    heartbeat_interval_s: float
    relayed: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    drills: Mapping[str, Drill] = field(default_factory=dict)


class LocalNode:
    """The processes of one node. It is up while its launcher lives; an agent that dies alone is started again."""

    def __init__(self, name: str, options: NodeOptions) -> None:
        """Start both. Raises OSError."""
        self.name = name
        self._options = options
        self.run_directory = options.directory.node(name)
        self._memory = memoryfolder.folder_of(
            memoryfolder.ROOT, job=options.job, member=name, run_dir=self.run_directory
        )
        self.forget_memory()
        # Records of an earlier life would be read as ranks that are gone.
        shutil.rmtree(self.run_directory, ignore_errors=True)
        self.run_directory.mkdir(parents=True)
        if (drill := options.drills.get(name)) is not None:
            (self.run_directory / DRILL_FILE).write_bytes(msgspec.json.encode(drill))
        self.launcher = self._child("launcher", self._launcher_arguments())
        self.agent = self._child("agent", self._agent_arguments())

    def restart_agent(self) -> None:
        """Start the agent again, as a cluster would."""
        self.agent = self._child("agent", self._agent_arguments())

    def kill(self) -> None:
        """SIGKILL everything of this node at once, as a power cut would; what was in its memory is gone."""
        below = [pid for root in (self.launcher.pid, self.agent.pid) for pid in descendants(root)]
        for process in (self.launcher, self.agent):
            process.send(signal.SIGKILL)
        for pid in below:
            send(pid, signal.SIGKILL)
        self.forget_memory()

    def forget_memory(self) -> None:
        """Take away the snapshots in the node's memory: they go with the node."""
        memoryfolder.remove(self._memory)

    def _child(self, part: str, arguments: tuple[str, ...]) -> ChildProcess:
        return ChildProcess(
            f"{part} of {self.name}",
            (sys.executable, *arguments),
            log=self._options.directory.logs / f"{self.name}.{part}.log",
            directory=self._options.working_directory,
            variables=self._options.variables,
        )

    def _agent_arguments(self) -> tuple[str, ...]:
        options = self._options
        return (
            *("-m", "holdfast.agent", "--node", self.name, "--job", options.job),
            *("--run-dir", str(self.run_directory), "--watchdog", options.watchdog),
            *("--token-file", str(options.directory.token_file)),
            *("--simulated-gpus", str(options.local_size), "--die-with-parent"),
        )

    def _launcher_arguments(self) -> tuple[str, ...]:
        options = self._options
        return (
            *("-m", "holdfast.agent.launch", "--member", self.name, "--node", self.name),
            *("--rdzv-endpoint", options.watchdog, "--rdzv-id", options.job),
            *("--nproc-per-node", str(options.local_size), "--token-file", str(options.directory.token_file)),
            *("--run-dir", str(self.run_directory), "--log-dir", str(options.directory.logs)),
            *("--heartbeat-interval", str(options.heartbeat_interval_s), "--local-addr", "127.0.0.1"),
            *options.entrypoint,
        )


async def stop_all(nodes: list[LocalNode]) -> None:
    """Stop every node at the same time; launchers first, so that their leaving is reported."""
    await asyncio.gather(*(node.launcher.stop() for node in nodes))
    await asyncio.gather(*(node.agent.stop() for node in nodes))
