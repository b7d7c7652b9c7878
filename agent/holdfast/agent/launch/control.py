"""The launcher's end of the workers' control connections (`holdfast.api.control`), on one unix socket.

Who is talking is taken from the kernel, not from the message: the peer's session is that of the worker it
descends from, because each worker is the leader of a session of its own.
"""

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.api.control import FromWorker, ToWorker
from holdfast.api.decoding import decode
from holdfast.api.errors import Damaged, Malformed, Unavailable
from holdfast.wire.frame import FrameReader, frame
from holdfast.wire.unixsocket import reachable

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 16
_UNSENT_BYTES_MAX = 1 << 20  # a worker that reads nothing for this long is not coming back
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class ControlServer:
    """Accepts workers, passes on what they say, tells them what they are told."""

    def __init__(
        self, *, run_dir: Path, on_message: Callable[[int, FromWorker], None], on_detached: Callable[[int], None]
    ) -> None:
        self._run_dir = run_dir
        self._on_message = on_message
        self._on_detached = on_detached
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromWorker)
        self._server: asyncio.Server | None = None
        self.path = Path()

    async def open(self) -> None:
        """Listen on a socket inside the run directory. Raises Unavailable when that cannot be."""
        self.path = self._run_dir / "launcher.sock"
        try:
            self.path.unlink(missing_ok=True)
            with reachable(self.path) as address:
                self._server = await asyncio.start_unix_server(self._converse, address)
            self.path.chmod(0o600)
        except OSError as error:
            why = f"no socket can be made at {self.path}: {error.strerror}"
            raise Unavailable(f"{why}; name another --run-dir") from error

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers.values()):
            writer.close()
        self.path.unlink(missing_ok=True)

    def tell(self, worker: int, message: ToWorker) -> bool:
        """Send to the worker whose process is `worker`; a connection that takes nothing more is closed. Whether
        there is one.
        """
        writer = self._writers.get(worker)
        if writer is None:
            return False
        if writer.transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            log.warning("a worker does not read its control connection pid=%d", worker)
            writer.close()
            return False
        writer.write(frame(self._encoder.encode(message)))
        return True

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: socket.socket = writer.get_extra_info("socket")
        pid, _, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        try:
            worker = os.getsid(pid)
        except ProcessLookupError:  # it is gone already
            writer.close()
            return
        if worker in self._writers:
            writer.close()
            return
        self._writers[worker] = writer
        frames = FrameReader()
        try:
            while data := await reader.read(_READ_BYTES):
                for payload in frames.feed(data):
                    self._on_message(worker, decode(self._decoder, payload))
        except ConnectionError:
            pass  # as good as its end
        except (Damaged, Malformed) as error:
            log.warning("a worker's message was not understood pid=%d error=%s", worker, error)
        finally:
            del self._writers[worker]
            writer.close()
            self._on_detached(worker)
