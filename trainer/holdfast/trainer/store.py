"""The store a round's process group is formed with: torch's `Store`, over a connection of our own.

Its server is one thread in the process of rank 0.

Torch's TCPStore was tried first and given up for two reasons. It asks the name service for the name behind every
address it meets, only to be able to log it, which stalled one connection in sixty for five seconds where the name
service was slow; and its client connects inside a constructor that nothing can interrupt, so that a round which
ends while it forms could not be left.
"""

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import msgspec
import torch.distributed as dist

from holdfast.api.control import Assignment
from holdfast.api.decoding import decode
from holdfast.api.errors import Damaged, Malformed, Unavailable
from holdfast.api.round import Endpoint
from holdfast.trainer import storetable
from holdfast.trainer.storetable import Answer, Request, StoreTable
from holdfast.trainer.torchgroups import Store
from holdfast.wire.door import ACCEPT_AGAIN_S, HELLO_S, OUT_OF_FILES, Strangers, open_files_max
from holdfast.wire.frame import FrameReader, frame

logger = logging.getLogger(__name__)

STORE_FRAME_BYTES_MAX = 1 << 24
HELLO_BYTES_MAX = 4096  # What a stranger can make the server hold.
_SEND_BYTES = 1 << 20
_UNSENT_BYTES_MAX = STORE_FRAME_BYTES_MAX + 4096
_BACKLOG = 4096  # All ranks of a large round come at once.
_STRANGERS_MAX = 1024
_RETRY_PAUSE_S = 0.005
_CONNECT_TIMEOUT_S = 1.0
_READ_BYTES = 1 << 16


class StoreServer:
    """Serves `table` at `endpoint` from construction until `close`."""

    def __init__(self, table: StoreTable, endpoint: Endpoint, *, hello_s: float = HELLO_S) -> None:
        """Raises Unavailable when the endpoint cannot be listened at."""
        self._table = table
        self._listener = _listen(endpoint)
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, _Client] = {}
        # The training script needs the descriptors; an eighth of them is for who has not said Hello.
        strangers = min(_STRANGERS_MAX, max(8, open_files_max() // 8))
        self._strangers: Strangers[int] = Strangers(strangers, strangers // 2, hello_s)
        self._accepts_again_at: float | None = None
        self._is_short_of_files = False
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
            wakeups = (self._table.next_wakeup(), self._strangers.next_wakeup(), self._accepts_again_at)
            wakeup = min((at for at in wakeups if at is not None), default=None)
            ready = self._selector.select(None if wakeup is None else max(0.0, wakeup - time.monotonic()))
            if any(key.fd == self._stop for key, _ in ready):
                break
            for key, events in ready:
                if key.fileobj is self._listener:
                    self._admit()
                elif key.data is not None and self._clients.get(key.fd) is key.data:
                    # Not so when an answer to an earlier one of this pass found its connection broken.
                    if events & selectors.EVENT_WRITE:
                        self._send(key.fd)
                    if events & selectors.EVENT_READ and key.fd in self._clients:
                        self._hear(key.fd)
            now = time.monotonic()
            self._tell(self._table.settle(now))
            for silent in self._strangers.overdue(now):
                self._drop(silent)
            if self._accepts_again_at is not None and now >= self._accepts_again_at:
                self._accepts_again_at = None
                self._selector.register(self._listener, selectors.EVENT_READ)
        for descriptor in tuple(self._clients):
            self._drop(descriptor)
        self._listener.close()
        self._selector.close()

    def _admit(self) -> None:
        try:
            connection, source = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            if error.errno not in OUT_OF_FILES:
                return  # The client gave up before it was accepted.
            if not self._is_short_of_files:
                logger.warning("ranks wait for the round's store reason=%s", error.strerror)
            self._is_short_of_files = True
            # Callers wait outside for a moment: the selector would tell of them again and again.
            self._selector.unregister(self._listener)
            self._accepts_again_at = time.monotonic() + ACCEPT_AGAIN_S
            return
        self._is_short_of_files = False
        descriptor = connection.fileno()
        client = self._clients[descriptor] = _Client(connection)
        self._selector.register(connection, selectors.EVENT_READ, client)
        gives_way = self._strangers.come(descriptor, source[0], time.monotonic())
        if gives_way is not None:
            self._drop(gives_way)

    def _send(self, descriptor: int) -> None:
        """What the client takes now; the rest once it takes more. It must not keep the others waiting."""
        client = self._clients[descriptor]
        try:
            client.send()
        except (OSError, _Greedy):
            self._drop(descriptor)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.unsent else 0)
        if self._selector.get_key(descriptor).events != events:
            self._selector.modify(descriptor, events, client)

    def _hear(self, descriptor: int) -> None:
        client = self._clients[descriptor]
        try:
            for request in client.receive():
                self._tell(self._table.ask(descriptor, request, time.monotonic()))
                if self._clients.get(descriptor) is not client:
                    return  # It has not taken its answers.
                if not client.is_known:
                    raise _Stranger
                self._strangers.forget(descriptor)
        except (OSError, Damaged, Malformed, _Stranger):
            self._drop(descriptor)

    def _tell(self, answers: list[tuple[int, Answer]]) -> None:
        for asker, answer in answers:
            client = self._clients.get(asker)
            if client is None:  # An answer before this one cost it its connection.
                continue
            try:
                client.answer(answer)
            except Damaged:
                self._drop(asker)
            else:
                self._send(asker)

    def _drop(self, descriptor: int) -> None:
        client = self._clients.pop(descriptor, None)
        if client is not None:
            self._table.forget(descriptor)
            self._strangers.forget(descriptor)
            self._selector.unregister(client.connection)
            client.connection.close()


class _Stranger(Exception):
    """A connection that did not begin with Hello, or was refused at it, or has ended."""


class _Greedy(Exception):
    """It asks on and takes no answer."""


class _Client:
    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(0)
        self.connection = connection
        self.unsent = bytearray()
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self.is_known = False
        self._decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)

    def receive(self) -> list[Request]:
        chunk = self.connection.recv(_READ_BYTES)
        if not chunk:
            raise _Stranger
        requests = [decode(self._decoder, body) for body in self._reader.feed(chunk)]
        if requests and not self.is_known and not isinstance(requests[0], storetable.Hello):
            raise _Stranger
        return requests

    def answer(self, answer: Answer) -> None:
        if not self.is_known and not answer.refused:
            self.is_known, self._reader.max_bytes = True, STORE_FRAME_BYTES_MAX
        self.unsent += frame(msgspec.msgpack.encode(answer), STORE_FRAME_BYTES_MAX)

    def send(self) -> None:
        """Raises OSError, and _Greedy when more than one answer is left: a rank asks one thing at a time."""
        with contextlib.suppress(BlockingIOError):
            while self.unsent:
                with memoryview(self.unsent) as content:
                    sent = self.connection.send(content[:_SEND_BYTES])
                del self.unsent[:sent]
        if len(self.unsent) > _UNSENT_BYTES_MAX:
            raise _Greedy


def _listen(endpoint: Endpoint) -> socket.socket:
    """At the endpoint's own address; at all addresses when it is not one of this host's (a service, a NAT)."""
    try:
        return socket.create_server((endpoint.host, endpoint.port), backlog=_BACKLOG)
    except OSError:
        try:
            return socket.create_server(("", endpoint.port), backlog=_BACKLOG)
        except OSError as error:
            where = f"{endpoint.host}:{endpoint.port}"
            raise Unavailable(f"the round's store cannot listen at {where}: {error}") from error


class RoundStore(Store):
    """A client of the round's store, and with rank 0 its server. Any thread; one request at a time.

    A server that is silent is waited for as long as a peer is in a collective, `timeout_s` beyond a request's own
    time: its process may be stopped, or hold the interpreter. As a rule it is named before, and the round ended.

    Raises DistStoreError when a wait takes too long, DistNetworkError when the store is gone.
    """

    def __init__(self, connection: socket.socket, *, server: StoreServer | None, timeout_s: float) -> None:
        super().__init__()
        self._connection = connection
        self._server = server
        self._timeout_s = self._silent_s_max = timeout_s
        self._asking = threading.Lock()
        self._reader = FrameReader(STORE_FRAME_BYTES_MAX)
        self._decoder = msgspec.msgpack.Decoder(Answer)

    def introduce(self, assignment: Assignment) -> None:
        """Raises Unavailable when the store is another round's, or went away."""
        try:
            job, round = assignment.job, assignment.round
            self._ask(storetable.Hello(job, round, storetable.proof_of(assignment.restore.owner, job, round)))
        except dist.DistError as error:
            self._connection.close()
            raise Unavailable(f"the store of round {assignment.round} cannot be used: {error}") from error

    def close(self) -> None:
        self._connection.close()
        if self._server is not None:
            self._server.close()

    # What torch calls. Positional, as torch's own stores take their arguments.

    def set(self, key: str, value: str | bytes) -> None:
        self._ask(storetable.Set(key, _bytes(value)))

    def get(self, key: str) -> bytes:
        return self._ask(storetable.Await((key,), self._timeout_s), self._timeout_s).value

    def add(self, key: str, value: int) -> int:
        return self._ask(storetable.Add(key, value)).number

    def append(self, key: str, value: str | bytes) -> None:
        self._ask(storetable.Append(key, _bytes(value)))

    def compare_set(self, key: str, expected: str | bytes, value: str | bytes) -> bytes:
        return self._ask(storetable.CompareSet(key, _bytes(expected), _bytes(value))).value

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask(storetable.Check(tuple(keys))).number)

    def delete_key(self, key: str) -> bool:
        return bool(self._ask(storetable.Delete(key)).number)

    def num_keys(self) -> int:
        return self._ask(storetable.Count()).number

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        timeout_s = self._timeout_s if timeout is None else timeout.total_seconds()
        self._ask(storetable.Await(tuple(keys), timeout_s), timeout_s)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    def _ask(self, request: Request, wait_s: float = 0.0) -> Answer:
        with self._asking:
            try:
                self._connection.settimeout(wait_s + self._silent_s_max)
                self._connection.sendall(frame(msgspec.msgpack.encode(request), STORE_FRAME_BYTES_MAX))
                answer = self._read()
            except (OSError, Damaged, Malformed) as error:
                raise dist.DistNetworkError(f"the round's store does not answer: {error}") from error
        if answer.refused:
            raise dist.DistStoreError(answer.refused)
        return answer

    def _read(self) -> Answer:
        while True:
            chunk = self._connection.recv(_READ_BYTES)
            if not chunk:
                raise ConnectionResetError("the connection was closed")
            for body in self._reader.feed(chunk):
                return decode(self._decoder, body)


def meet(assignment: Assignment, *, timeout_s: float, check: Callable[[], None]) -> RoundStore:
    """The store of the round; rank 0 hosts it. `check` is called between attempts and raises to give up.

    Raises Unavailable when nobody listens at the endpoint within `timeout_s`, when rank 0 cannot listen there,
    or when what listens there is another round's.
    """
    server = None
    if assignment.rank == 0:
        server = StoreServer(
            StoreTable(assignment.job, assignment.round, assignment.restore.owner), assignment.endpoint
        )
    try:
        connection = _connect(assignment, timeout_s=timeout_s, check=check)
        store = RoundStore(connection, server=server, timeout_s=timeout_s)
        store.introduce(assignment)
    except BaseException:
        if server is not None:
            server.close()
        raise
    return store


def _connect(assignment: Assignment, *, timeout_s: float, check: Callable[[], None]) -> socket.socket:
    endpoint = assignment.endpoint
    deadline = time.monotonic() + timeout_s
    while True:
        check()
        with contextlib.suppress(OSError):
            connection = socket.create_connection((endpoint.host, endpoint.port), timeout=_CONNECT_TIMEOUT_S)
            if connection.getsockname() != connection.getpeername():
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection
            # A port of the ephemeral range that nobody listens at yet can be given to the connection itself,
            # which then meets itself. Reset, it leaves nothing behind that would keep rank 0 from listening.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            connection.close()
        if time.monotonic() > deadline:
            raise Unavailable(f"no store listens at {endpoint.host}:{endpoint.port} after {timeout_s:.0f} s")
        time.sleep(_RETRY_PAUSE_S)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
