"""The worker's end of the control socket: frames of msgpack, as `holdfast.api.control` fixes them."""

import socket
import struct
import threading

import msgspec

from holdfast.api.control import FromWorker, ToWorker
from holdfast.api.decoding import decode
from holdfast.api.errors import Damaged, Malformed, Unavailable
from holdfast.wire.frame import FrameReader, frame

_READ_BYTES = 1 << 16
_SEND_TIMEOUT = struct.pack("ll", 5, 0)  # struct timeval: seconds, microseconds


class ControlClosed(Unavailable):
    """The launcher closed the control socket, or what came over it was not ours."""


class Control:
    """One connection to the launcher. `send` may be called from any thread, `receive` from one."""

    def __init__(self, path: str) -> None:
        """Connect to the unix socket at `path`. Raises Unavailable when nobody listens there."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise Unavailable(f"the launcher's control socket {path} does not answer: {error}") from error
        # A launcher that stopped reading must not stop the training loop for ever.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        self._sending = threading.Lock()
        self._reader = FrameReader()
        self._decoder: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: FromWorker) -> None:
        """Raises ControlClosed when the launcher is gone or does not read."""
        body = msgspec.msgpack.encode(message)
        with self._sending:
            try:
                self._socket.sendall(frame(body))
            except OSError as error:
                raise ControlClosed(f"the launcher did not take a message: {error}") from error

    def receive(self) -> list[ToWorker]:
        """What has arrived; call when the socket is readable. Raises ControlClosed at its end."""
        try:
            chunk = self._socket.recv(_READ_BYTES)
        except OSError as error:
            raise ControlClosed(f"the control socket broke: {error}") from error
        if not chunk:
            raise ControlClosed("the launcher closed the control socket")
        try:
            return [decode(self._decoder, body) for body in self._reader.feed(chunk)]
        except (Damaged, Malformed) as error:
            raise ControlClosed(f"a control frame could not be read: {error}") from error

    def close(self) -> None:
        self._socket.close()
