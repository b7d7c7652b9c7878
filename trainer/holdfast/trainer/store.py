"""The store a round's process group is formed with: torch's `Store`, over a connection of our own.

Torch's TCPStore was tried first and given up for two reasons. It asks the name service for the name behind every
address it meets, only to be able to log it, which stalled one connection in sixty for five seconds where the name
service was slow; and its client connects inside a constructor that nothing can interrupt, so that a round which
ends while it forms could not be left.
"""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import msgspec
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from holdfast.api.control import Assignment
from holdfast.api.decoding import decode
from holdfast.api.errors import Damaged, Malformed, Unavailable
from holdfast.trainer.storeserver import STORE_FRAME_BYTES_MAX, StoreServer
from holdfast.trainer.storetable import (
    Add,
    Answer,
    Append,
    Await,
    Check,
    CompareSet,
    Count,
    Delete,
    Hello,
    Request,
    Set,
    StoreTable,
    proof_of,
)
from holdfast.wire.frame import FrameReader, frame

_RETRY_PAUSE_S = 0.005
_CONNECT_TIMEOUT_S = 1.0
_READ_BYTES = 1 << 16
_ANSWER_GRACE_S = 30.0
"""How much longer than a request's own time its answer may take, before the server counts as gone."""


def meet(assignment: Assignment, *, timeout_s: float, check: Callable[[], None]) -> "RoundStore":
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


class RoundStore(Store):
    """A client of the round's store, and with rank 0 its server. Any thread; one request at a time.

    Raises DistStoreError when a wait takes too long, DistNetworkError when the store is gone.
    """

    def __init__(self, connection: socket.socket, *, server: StoreServer | None, timeout_s: float) -> None:
        super().__init__()
        self._connection = connection
        self._server = server
        self._timeout_s = timeout_s
        self._asking = threading.Lock()
        self._reader = FrameReader(STORE_FRAME_BYTES_MAX)
        self._decoder = msgspec.msgpack.Decoder(Answer)

    def introduce(self, assignment: Assignment) -> None:
        """Raises Unavailable when the store is another round's, or went away."""
        try:
            job, round = assignment.job, assignment.round
            self._ask(Hello(job, round, proof_of(assignment.restore.owner, job, round)))
        except dist.DistError as error:
            self._connection.close()
            raise Unavailable(f"the store of round {assignment.round} cannot be used: {error}") from error

    def close(self) -> None:
        self._connection.close()
        if self._server is not None:
            self._server.close()

    # What torch calls. Positional, as torch's own stores take their arguments.

    def set(self, key: str, value: str | bytes) -> None:
        self._ask(Set(key, _bytes(value)))

    def get(self, key: str) -> bytes:
        return self._ask(Await((key,), self._timeout_s), self._timeout_s).value

    def add(self, key: str, value: int) -> int:
        return self._ask(Add(key, value)).number

    def append(self, key: str, value: str | bytes) -> None:
        self._ask(Append(key, _bytes(value)))

    def compare_set(self, key: str, expected: str | bytes, value: str | bytes) -> bytes:
        return self._ask(CompareSet(key, _bytes(expected), _bytes(value))).value

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask(Check(tuple(keys))).number)

    def delete_key(self, key: str) -> bool:
        return bool(self._ask(Delete(key)).number)

    def num_keys(self) -> int:
        return self._ask(Count()).number

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        timeout_s = self._timeout_s if timeout is None else timeout.total_seconds()
        self._ask(Await(tuple(keys), timeout_s), timeout_s)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    def _ask(self, request: Request, wait_s: float = 0.0) -> Answer:
        with self._asking:
            try:
                self._connection.settimeout(wait_s + _ANSWER_GRACE_S)
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


def _connect(assignment: Assignment, *, timeout_s: float, check: Callable[[], None]) -> socket.socket:
    endpoint = assignment.endpoint
    deadline = time.monotonic() + timeout_s
    while True:
        check()
        connection = _try_to_connect(endpoint.host, endpoint.port)
        if connection is not None:
            return connection
        if time.monotonic() > deadline:
            raise Unavailable(f"no store listens at {endpoint.host}:{endpoint.port} after {timeout_s:.0f} s")
        time.sleep(_RETRY_PAUSE_S)


def _try_to_connect(host: str, port: int) -> socket.socket | None:
    try:
        connection = socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S)
        if connection.getsockname() != connection.getpeername():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
    except OSError:
        return None
    # A port of the ephemeral range that nobody listens at yet can be given to the connection itself, which then
    # meets itself. Reset, it leaves nothing behind that would keep rank 0 from listening.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()
    return None


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
