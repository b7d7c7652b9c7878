"""Worker processes for tests, forked by the warm parent that a launcher has: nobody imports torch anew."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from patience import patient
from server_process import free_port

from holdfast.agent.launch.forking import Ended, EntrypointKind, Fork, Forked, FromWarmParent
from holdfast.wire.frame import FrameReader, frame

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class ForkedProcess:
    """One of them. Like subprocess.Popen, as far as tests need it; `log` has what it wrote."""

    def __init__(self, fork_server: "ForkServer", pid: int, log: Path) -> None:
        self._fork_server = fork_server
        self.pid = pid
        self.log = log

    @property
    def returncode(self) -> int | None:
        ended = self._fork_server.ended.get(self.pid)
        if ended is None:
            return None
        return ended.exit_code if ended.exit_code is not None else -(ended.signal or 0)

    def poll(self) -> int | None:
        """How it ended, a signal as a negative number; None while it runs."""
        self._fork_server.listen(0.0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Raises AssertionError when it runs on."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            assert time.monotonic() < deadline, f"process {self.pid} did not end within {timeout} s"
            self._fork_server.listen(deadline - time.monotonic())
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """`with ForkServer() as fork_server:`; all that was forked in it ends with it."""

    def __init__(self) -> None:
        self.ended: dict[int, Ended] = {}
        self._forked: dict[int, int] = {}  # process ids by ticket
        self._frames = FrameReader()
        self._decoder = msgspec.msgpack.Decoder(FromWarmParent)
        self._channel, theirs = socket.socketpair()
        command = [sys.executable, "-m", "holdfast.agent.launch.warm_parent", str(theirs.fileno()), "torch"]
        self._parent = subprocess.Popen(command, env={**os.environ, **ONE_THREAD}, pass_fds=[theirs.fileno()])
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()
        self._parent.wait(patient(30.0))

    def fork(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> ForkedProcess:
        """Run a script, `argv[0]`, in a new process."""
        ticket = len(self._forked)
        log = cwd / f"worker-{ticket}.log"
        request = Fork(ticket, f"rank{ticket}", EntrypointKind.SCRIPT, tuple(argv), dict(env), str(cwd), str(log))
        self._channel.sendall(frame(msgspec.msgpack.encode(request)))
        deadline = time.monotonic() + patient(60.0)
        while ticket not in self._forked:
            assert time.monotonic() < deadline, "the warm parent forks nothing"
            self.listen(1.0)
        return ForkedProcess(self, self._forked[ticket], log)

    def listen(self, within_s: float) -> None:
        """Take what the warm parent says, at the latest after `within_s`."""
        self._channel.settimeout(max(within_s, 1e-3))
        try:
            said = self._channel.recv(1 << 16)
        except TimeoutError:
            return
        assert said, "the warm parent has ended"
        for payload in self._frames.feed(said):
            message = self._decoder.decode(payload)
            if isinstance(message, Forked):
                self._forked[message.ticket] = message.pid
            elif isinstance(message, Ended):
                self.ended[message.pid] = message


def run_together(count: int, argv: Sequence[str | Path], *, cwd: Path, within_s: float) -> None:
    """Run a script as so many ranks, as stock torchrun does, and wait until all have succeeded.

    Without torchrun: its agent and each of its ranks would import torch anew.
    """
    ranks = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "GLOO_SOCKET_IFNAME": "lo"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with ForkServer() as fork_server:
        processes = []
        for rank in range(count):
            variables = {
                **os.environ,
                **ONE_THREAD,
                **ranks,
                **meeting,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
            }
            processes.append(fork_server.fork([str(each) for each in argv], env=variables, cwd=cwd))
        for process in processes:
            assert process.wait(within_s) == 0, process.log.read_text()
