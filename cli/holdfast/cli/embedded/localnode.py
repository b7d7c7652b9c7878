"""One local node: an agent and a launcher, everything below them, its memory, and its way to the watchdog."""

import asyncio
import contextlib
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from holdfast.agent.launch import memoryfolder
from holdfast.api.drill import DRILL_FILE, Drill
from holdfast.cli.embedded.childprocess import ChildProcess, descendants, send
from holdfast.cli.embedded.jobfile import Prepared
from holdfast.cli.statedirectory import StateDirectory

CHUNK_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What every node of a run is started with.

    `relayed`: the way to the watchdog goes by a relay of the node's own, so that it can be cut.

    `variables` are added to the environment of its processes; `drills` are what self-tests go wrong by, by node.
    """

    prepared: Prepared
    directory: StateDirectory
    watchdog: str
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
            memoryfolder.ROOT, job=options.prepared.job.id, member=name, run_dir=self.run_directory
        )
        self.forget_memory()
        # Records of an earlier life would be read as ranks that are gone.
        shutil.rmtree(self.run_directory, ignore_errors=True)
        self.run_directory.mkdir(parents=True)
        if (drill := options.drills.get(name)) is not None:
            (self.run_directory / DRILL_FILE).write_bytes(msgspec.json.encode(drill))
        spec, token_file = options.prepared.job.spec, str(options.directory.token_file)
        self.launcher = self._child(
            "launcher",
            *("-m", "holdfast.agent.launch", "--member", name, "--node", name),
            *("--rdzv-endpoint", options.watchdog, "--rdzv-id", options.prepared.job.id),
            *("--nproc-per-node", str(spec.local_size()), "--token-file", token_file),
            *("--run-dir", str(self.run_directory), "--log-dir", str(options.directory.logs)),
            *("--heartbeat-interval", str(spec.fault_policy.heartbeat.interval.total_seconds())),
            *("--local-addr", "127.0.0.1", "--preload", ",".join(spec.startup.preload)),
            *options.prepared.entrypoint,
        )
        self.start_agent()

    def start_agent(self) -> None:
        """Start the agent; again, as a cluster would, when it has ended."""
        options, job = self._options, self._options.prepared.job
        self.agent = self._child(
            "agent",
            *("-m", "holdfast.agent", "--node", self.name, "--job", job.id),
            *("--run-dir", str(self.run_directory), "--watchdog", options.watchdog),
            *("--token-file", str(options.directory.token_file)),
            *("--simulated-gpus", str(job.spec.local_size()), "--die-with-parent"),
        )

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

    def _child(self, part: str, *arguments: str) -> ChildProcess:
        return ChildProcess(
            (sys.executable, *arguments),
            log=self._options.directory.logs / f"{self.name}.{part}.log",
            directory=self._options.prepared.working_directory,
            variables=self._options.variables,
        )


async def stop_all(nodes: list[LocalNode]) -> None:
    """Stop every node at the same time; launchers first, so that their leaving is reported."""
    await asyncio.gather(*(node.launcher.stop() for node in nodes))
    await asyncio.gather(*(node.agent.stop() for node in nodes))


class Relay:
    """A node's way to the watchdog, which a drill can cut: both ends stay alive, and nothing passes between them.

    As in a network that drops every packet, connections neither close nor fail: what is sent waits, and passes
    when the way is open again, unless whoever waits for it has given up. Loopback only. It listens from the start,
    and must be made in the event loop. `target` is HOST:PORT.
    """

    def __init__(self, target: str) -> None:
        """Raises OSError when no port can be had."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(0)
        self._open = asyncio.Event()
        self._open.set()
        self._conversations: set[asyncio.Task[None]] = set()
        self._serving = asyncio.create_task(self._serve())

    @property
    def address(self) -> str:
        """Where to connect to in place of the target."""
        host, port = self._listening.getsockname()
        return f"{host}:{port}"

    async def cut(self, seconds: float) -> None:
        """Let nothing pass for so long. Cancelled, it opens the way at once."""
        self._open.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._open.set()

    async def close(self) -> None:
        """End every conversation."""
        for task in (self._serving, *self._conversations):
            task.cancel()
        await asyncio.gather(self._serving, *self._conversations, return_exceptions=True)
        self._listening.close()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            caller, _ = await loop.sock_accept(self._listening)
            conversation = asyncio.create_task(self._converse(caller))
            self._conversations.add(conversation)
            conversation.add_done_callback(self._conversations.discard)

    async def _converse(self, caller: socket.socket) -> None:
        """Carry what both say, until either has no more to say."""
        with caller, contextlib.suppress(OSError):
            caller.settimeout(0)
            await self._open.wait()
            with socket.socket() as called:
                called.settimeout(0)
                await asyncio.get_running_loop().sock_connect(called, self._target)
                ways = [asyncio.create_task(self._carry(*way)) for way in ((caller, called), (called, caller))]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)

    async def _carry(self, source: socket.socket, target: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while said := await loop.sock_recv(source, CHUNK_BYTES):
            await self._open.wait()
            await loop.sock_sendall(target, said)
        await self._open.wait()  # An end is no more heard of than a word.
