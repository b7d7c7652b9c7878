"""The launcher's end of the warm parent, which forks worker processes.

A warm parent that dies takes its workers along (each asked for that with its parent-death signal); their groups
are killed to be sure, they are told of as ended, and a new warm parent takes over what was still asked for.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from holdfast.agent.launch import forking
from holdfast.agent.launch.preload import LEFT_MAX, leave_what_killed, single_threaded
from holdfast.api.decoding import decode
from holdfast.wire.frame import FrameReader, frame

log = logging.getLogger(__name__)

_FIRST_DELAY_S = 0.05  # a warm parent that was killed is replaced almost at once
_DELAY_S_MAX = 5.0  # one that cannot even start must not spin
_END_TIMEOUT_S = 2.0  # killing and reaping a node's workers takes tens of milliseconds
_READ_BYTES = 1 << 16
_FIRST_PROCESS = 1


class ForkServer:
    """Keeps one warm parent running while `run` runs, and passes on what it says."""

    def __init__(
        self,
        *,
        preload: forking.Preload,
        environment: Mapping[str, str],
        on_message: Callable[[forking.FromWarmParent], None],
        wanted: Path | None = None,
        argv: Sequence[str] = (),
    ) -> None:
        """`wanted` is the file of the `PreloadList` of what to import beside torch, `argv` what its packages find
        in `sys.argv`.
        """
        self._wanted = wanted
        self._argv = tuple(argv)
        self._preload = preload
        self._environment = environment
        self._on_message = on_message
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(forking.FromWarmParent)
        self._writer: asyncio.StreamWriter | None = None
        self._open: dict[int, forking.Fork] = {}
        self._alive: set[int] = set()
        self.ready: forking.Ready | None = None

    @property
    def is_warm(self) -> bool:
        return self.ready is not None and self.ready.warm

    @property
    def is_idle(self) -> bool:
        """Whether it has no worker, and none is asked for."""
        return not self._alive and not self._open

    def fork(self, request: forking.Fork) -> None:
        """Ask for a worker; it waits for the warm parent when there is none right now."""
        self._open[request.ticket] = request
        self._send(request)

    def kill(self, pid: int) -> None:
        """SIGKILL a worker and its process group."""
        self._send(forking.Kill(pid))

    def dump(self, pid: int) -> None:
        """Have a worker write where its threads are."""
        self._send(forking.Dump(pid))

    async def run(self) -> None:
        """Keep a warm parent running until cancelled; then end it with all its workers. One that imports what a
        script needs, and never gets ready, is given up: nothing was forked from it.
        """
        delay_s = _FIRST_DELAY_S
        starts = 0  # without ever being ready
        while self._wanted is None or starts <= LEFT_MAX:
            process, channel = self._start_process()
            try:
                await self._serve(channel)
            finally:
                # Its channel is closed, so it kills its workers and ends. One that is still importing has no
                # workers, and would only look at its channel afterwards.
                try:
                    await asyncio.wait_for(ended(process.pid), _END_TIMEOUT_S if self.ready else 0.0)
                except TimeoutError:
                    process.kill()
                process.wait()
            delay_s = _FIRST_DELAY_S if self.ready else min(2 * delay_s, _DELAY_S_MAX)
            starts = 0 if self.ready else starts + 1
            log.error(
                "the warm parent ended pid=%d status=%s workers=%d",
                process.pid,
                process.returncode,
                len(self._alive),
            )
            self.ready = None
            at_ns = time.monotonic_ns()
            for pid in tuple(self._alive):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                self._alive.discard(pid)
                self._on_message(forking.Ended(pid, at_ns, signal=signal.SIGKILL))
                self._on_message(forking.GroupGone(pid))
            await asyncio.sleep(delay_s)  # also gives what was killed the time to end
            if os.getpid() == _FIRST_PROCESS:
                _reap_orphans()
        log.warning("imported nothing beforehand: the process that was to do it ended %d times", starts)
        await asyncio.Event().wait()

    def _start_process(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        descriptor = theirs.fileno()
        command = [sys.executable, "-m", "holdfast.agent.launch.warm_parent", str(descriptor), self._preload.value]
        if self._wanted is not None:
            with contextlib.suppress(OSError):  # then it is tried again
                leave_what_killed(self._wanted)
            command += [str(self._wanted), *self._argv]
        process = subprocess.Popen(
            command,
            env=single_threaded(self._environment),
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        return process, ours

    async def _serve(self, channel: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=channel)
        self._writer = writer
        frames = FrameReader()
        for request in self._open.values():
            self._send(request)
        try:
            while data := await _read(reader):
                for payload in frames.feed(data):
                    self._hear(decode(self._decoder, payload))
        finally:
            self._writer = None
            writer.close()

    def _hear(self, message: forking.FromWarmParent) -> None:
        match message:
            case forking.Ready():
                self.ready = message
            case forking.Forked(ticket, pid):
                del self._open[ticket]
                self._alive.add(pid)
            case forking.NotForked(ticket):
                del self._open[ticket]
            case forking.Ended(pid):
                self._alive.discard(pid)
        self._on_message(message)

    def _send(self, message: forking.ToWarmParent) -> None:
        if self._writer is not None:
            self._writer.write(frame(self._encoder.encode(message)))


def _reap_orphans() -> None:
    """Reap what the warm parent left to this process, which is a pod's first one.

    Its other child, the transfer server, may be reaped here as well; whoever waits for it copes with that.
    """
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


async def ended(pid: int) -> None:
    """Return when the kernel has ended our child `pid`; most often it is still to be reaped."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop.add_reader(descriptor, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Nothing at the end: a broken channel is as good as one. What takes the messages may fail in the same way."""
    try:
        return await reader.read(_READ_BYTES)
    except ConnectionError:
        return b""
