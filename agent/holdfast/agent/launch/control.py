"""The launcher's end of the workers' control connections (`holdfast.api.control`), on one unix socket.

Who is talking is taken from the kernel, not from the message: the peer's session is that of the worker it
descends from, because each worker is the leader of a session of its own.
"""

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.api.control import FromWorker, ToWorker
from holdfast.api.decoding import UnknownMessage, decode_any, tags_of
from holdfast.api.errors import Damaged, Malformed, Unavailable
from holdfast.wire.frame import FrameReader, frame
from holdfast.wire.unixsocket import reachable

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 16
_UNSENT_BYTES_MAX = 1 << 20  # a worker that reads nothing for this long is not coming back
_KINDS = tags_of(FromWorker)
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class ControlServer:
    """Accepts workers, passes on what they say, tells them what they are told."""

    def __init__(
        self, *, run_dir: Path, on_message: Callable[[int, FromWorker], None], on_detached: Callable[[int], None]
    ) -> None:
        self._run_dir = run_dir
        self._on_message = on_message
        self._on_detached = on_detached
        self._lines: dict[int, _Line] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._server: asyncio.Server | None = None
        self.path = Path()

    async def open(self) -> None:
        """Listen on a socket inside the run directory. Raises Unavailable when that cannot be."""
        self.path = self._run_dir / "launcher.sock"
        loop = asyncio.get_running_loop()
        try:
            self.path.unlink(missing_ok=True)
            with reachable(self.path) as address:
                self._server = await loop.create_unix_server(self._line, address)
            self.path.chmod(0o600)
        except OSError as error:
            why = f"no socket can be made at {self.path}: {error.strerror}"
            raise Unavailable(f"{why}; name another --run-dir") from error

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for line in tuple(self._lines.values()):
            line.close()
        self.path.unlink(missing_ok=True)

    def tell(self, worker: int, message: ToWorker) -> bool:
        """Send to the worker whose process is `worker`; a connection that takes nothing more is closed. Whether
        there is one.
        """
        line = self._lines.get(worker)
        return line is not None and line.tell(frame(self._encoder.encode(message)))

    def drain(self, worker: int) -> None:
        """Pass on what the process has said and was not looked at yet. Once the kernel has ended it, nothing more
        comes: so its last word is known before its end is judged.
        """
        if (line := self._lines.get(worker)) is not None:
            line.drain()

    def _line(self) -> "_Line":
        return _Line(self._lines, self._on_message, self._on_detached)


class _Line(asyncio.Protocol):
    """One worker's connection, among `lines`. What arrives is passed on in the turn of the loop that reads it."""

    def __init__(
        self,
        lines: "dict[int, _Line]",
        on_message: Callable[[int, FromWorker], None],
        on_detached: Callable[[int], None],
    ) -> None:
        self._lines = lines
        self._on_message = on_message
        self._on_detached = on_detached
        self._frames = FrameReader()
        self._decoder = msgspec.msgpack.Decoder(FromWorker)
        self._transport: asyncio.Transport | None = None
        self._worker: int | None = None  # whose it is, once that is known

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        peer: socket.socket = transport.get_extra_info("socket")
        pid, _, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        try:
            worker = os.getsid(pid)
        except ProcessLookupError:  # it is gone already
            transport.close()
            return
        if worker in self._lines:
            transport.close()
            return
        self._transport, self._worker = transport, worker
        self._lines[worker] = self

    def data_received(self, data: bytes) -> None:
        if self._worker is None:
            return
        try:
            for payload in self._frames.feed(data):
                self._take(payload)
        except (Damaged, Malformed) as error:
            log.warning("a worker's message was not understood pid=%d error=%s", self._worker, error)
            self.close()

    def _take(self, payload: bytes) -> None:
        """Raises Malformed."""
        assert self._worker is not None
        try:
            message = decode_any(self._decoder, payload, _KINDS)
        except UnknownMessage as error:
            # Of a later trainer: what it says besides is understood.
            log.warning("a worker's message was passed over pid=%d error=%s", self._worker, error)
            return
        self._on_message(self._worker, message)

    def connection_lost(self, error: Exception | None) -> None:
        if self._worker is not None:
            worker, self._worker = self._worker, None
            del self._lines[worker]
            self._on_detached(worker)

    def tell(self, framed: bytes) -> bool:
        """Send it; False where the worker has not read for long, and is given up."""
        assert self._transport is not None
        if self._transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            log.warning("a worker does not read its control connection pid=%d", self._worker)
            self.close()
            return False
        self._transport.write(framed)
        return True

    def drain(self) -> None:
        """Read what is there now."""
        assert self._transport is not None
        peer = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # there is no more, or the connection is over
            while not self._transport.is_closing() and (data := os.read(peer.fileno(), _READ_BYTES)):
                self.data_received(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
