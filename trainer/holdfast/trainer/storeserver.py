"""The server of a round's store: one thread in the process of rank 0."""

import contextlib
import os
import selectors
import socket
import threading
import time

import msgspec

from holdfast.api.decoding import decode
from holdfast.api.errors import Damaged, Malformed, Unavailable
from holdfast.api.frame import FrameReader, frame
from holdfast.api.round import Endpoint
from holdfast.trainer.storetable import Answer, Hello, Request, StoreTable

STORE_FRAME_BYTES_MAX = 1 << 24
HELLO_BYTES_MAX = 4096  # What a stranger can make the server hold.
_READ_BYTES = 1 << 16
_BACKLOG = 4096  # All ranks of a large round come at once.


class StoreServer:
    """Serves `table` at `endpoint` from construction until `close`."""

    def __init__(self, table: StoreTable, endpoint: Endpoint) -> None:
        """Raises Unavailable when the endpoint cannot be listened at."""
        self._table = table
        self._listener = _listen(endpoint)
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, _Client] = {}
        self._thread = threading.Thread(target=self._serve, name="holdfast-store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._stop)

    def _serve(self) -> None:
        self._selector.register(self._stop, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while True:
            ready = [key for key, _ in self._selector.select(self._pause_s())]
            if any(key.fd == self._stop for key in ready):
                break
            for key in ready:
                if key.fileobj is self._listener:
                    self._admit()
                elif key.data is not None and self._clients.get(key.fd) is key.data:
                    # Not so when an answer to an earlier one of this pass found its connection broken.
                    self._hear(key.fd)
            self._tell(self._table.settle(time.monotonic()))
        for descriptor in tuple(self._clients):
            self._drop(descriptor)
        self._listener.close()
        self._selector.close()

    def _pause_s(self) -> float | None:
        wakeup = self._table.next_wakeup()
        return None if wakeup is None else max(0.0, wakeup - time.monotonic())

    def _admit(self) -> None:
        with contextlib.suppress(OSError):  # The client gave up before it was accepted.
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client = self._clients[connection.fileno()] = _Client(connection)
            self._selector.register(connection, selectors.EVENT_READ, client)

    def _hear(self, descriptor: int) -> None:
        client = self._clients[descriptor]
        try:
            for request in client.receive():
                self._tell(self._table.ask(descriptor, request, time.monotonic()))
                if not client.is_known:
                    raise _Stranger
        except (OSError, Damaged, Malformed, _Stranger):
            self._drop(descriptor)

    def _tell(self, answers: list[tuple[int, Answer]]) -> None:
        for asker, answer in answers:
            try:
                self._clients[asker].answer(answer)
            except (OSError, Damaged):
                self._drop(asker)

    def _drop(self, descriptor: int) -> None:
        client = self._clients.pop(descriptor, None)
        if client is not None:
            self._table.forget(descriptor)
            self._selector.unregister(client.connection)
            client.connection.close()


class _Stranger(Exception):
    """A connection that did not begin with Hello, or was refused at it, or has ended."""


class _Client:
    def __init__(self, connection: socket.socket) -> None:
        # A client that does not take its answers must not keep the others waiting for long.
        connection.settimeout(5.0)
        self.connection = connection
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self.is_known = False
        self._decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)

    def receive(self) -> list[Request]:
        chunk = self.connection.recv(_READ_BYTES)
        if not chunk:
            raise _Stranger
        requests = [decode(self._decoder, body) for body in self._reader.feed(chunk)]
        if requests and not self.is_known and not isinstance(requests[0], Hello):
            raise _Stranger
        return requests

    def answer(self, answer: Answer) -> None:
        if not self.is_known and not answer.refused:
            self.is_known, self._reader.max_bytes = True, STORE_FRAME_BYTES_MAX
        self.connection.sendall(frame(msgspec.msgpack.encode(answer), STORE_FRAME_BYTES_MAX))


def _listen(endpoint: Endpoint) -> socket.socket:
    """At the endpoint's own address; at all addresses when it is not one of this host's (a service, a NAT)."""
    try:
        return _create_server(endpoint.host, endpoint.port)
    except OSError:
        try:
            return _create_server("", endpoint.port)
        except OSError as error:
            where = f"{endpoint.host}:{endpoint.port}"
            raise Unavailable(f"the round's store cannot listen at {where}: {error}") from error


def _create_server(host: str, port: int) -> socket.socket:
    return socket.create_server((host, port), backlog=_BACKLOG)
