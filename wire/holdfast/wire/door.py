"""The way in to a server that anybody can reach: connections of strangers are few and leave room for others.

A stranger is whoever has not said yet who it is, on any port. Who listens takes everybody in, and somebody always
gives way when there are too many: the oldest of the source that has too many, or the most. So whoever speaks at
once is heard, however many others come and say nothing.
"""

import asyncio
import errno
import logging
import resource
import socket
import ssl
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar, cast

logger = logging.getLogger(__name__)

_BACKLOG: Final = 4096
_AT_ONCE: Final = 64  # Callers taken in before those that are in already are heard again.
_SAY_AGAIN_S: Final = 60.0
_OF_ONE_SOURCE_MAX: Final = 4096  # Some 60 MiB of them.

HELLO_S: Final = 10.0
"""What proves who calls is sent with the connection's first bytes; a node short of CPU is slower than a second."""

# What Linux allows by default where it is not bounded otherwise. Source: man 5 proc, fs/nr_open
_UNBOUNDED: Final = 1 << 20

OUT_OF_FILES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""Errors of `accept` that come again at once: the caller still waits. After others, it is gone."""

ACCEPT_AGAIN_S: Final = 0.2
"""How long whoever listens waits after one of those."""

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class Strangers(Generic[K]):
    """At most `at_most`, and of one source address `of_one_source`, each for `patience_s`. Keys: connections."""

    at_most: int
    of_one_source: int
    patience_s: float = HELLO_S
    _came: dict[K, tuple[str, float]] = field(default_factory=dict)  # in the order in which they came
    _of: dict[str, dict[K, None]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._came)

    def come(self, key: K, source: str, now: float) -> K | None:
        """One more; returns who gives way to it, and is forgotten."""
        self._came[key] = source, now
        siblings = self._of.setdefault(source, {})
        siblings[key] = None
        if len(siblings) <= self.of_one_source:
            if len(self._came) <= self.at_most:
                return None
            siblings = max(self._of.values(), key=len)
        oldest = next(iter(siblings))
        self.forget(oldest)
        return oldest

    def forget(self, key: K) -> None:
        """It has proved who it is, or is gone."""
        came = self._came.pop(key, None)
        if came is not None:
            siblings = self._of[came[0]]
            del siblings[key]
            if not siblings:
                del self._of[came[0]]

    def overdue(self, now: float) -> list[K]:
        """Whose time is over."""
        late: list[K] = []
        for key, (_, at) in self._came.items():
            if at + self.patience_s > now:
                break
            late.append(key)
        return late

    def next_wakeup(self) -> float | None:
        """When the time of the oldest is over."""
        return next((at + self.patience_s for _, at in self._came.values()), None)


class Door:
    """Takes connections in at `listener`, which it owns, once `open` is called.

    Of the `files` that the process may have open, strangers have a quarter, those of one address a sixteenth; a
    sixteenth is for all else, and the rest for whoever is known: whoever `admit` was called for. `dropped` is
    called for every stranger whose connection is ended to make room for others.
    """

    def __init__(self, listener: socket.socket, *, files: int, dropped: Callable[[], None] = lambda: None) -> None:
        listener.settimeout(0)
        self._listener = listener
        self._strangers: Strangers[_Guest] = Strangers(
            max(8, files // 4), max(4, min(files // 16, _OF_ONE_SOURCE_MAX))
        )
        self._known_max = max(1, files - files // 4 - files // 16)
        self._dropped = dropped
        self._guests: dict[asyncio.BaseProtocol, _Guest] = {}
        self._known: set[_Guest] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._said: dict[str, float] = {}

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()[:2]
        return host, port

    def open(self, factory: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None = None) -> None:
        """Take callers in from now on, each with a protocol of its own."""
        self._accepting = asyncio.create_task(self._accept(factory, tls))

    async def close(self) -> None:
        """Take nobody in any more; who is in stays until its protocol ends it."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        for guest in self._guests.values():
            guest.leave_unmet()
        self._listener.close()

    def admit(self, protocol: asyncio.BaseProtocol) -> bool:
        """The caller of this connection has proved who it is. False when there is no room for one more."""
        guest = self._guests.get(protocol)
        if guest is None or guest in self._known:
            return True  # It is gone already, or came another way.
        if len(self._known) >= self._known_max:
            self._say("no room for callers that are known", f"{self._known_max} are connected")
            return False
        self._strangers.forget(guest)
        self._known.add(guest)
        return True

    async def _accept(self, factory: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        taken = 0
        while True:
            try:
                connection, (source, *_) = await loop.sock_accept(self._listener)
            except OSError as error:
                if error.errno in OUT_OF_FILES:
                    self._say("callers wait outside", str(error.strerror))
                    await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            guest = _Guest(factory(), self._gone)
            self._guests[guest.inner] = guest
            guest.meet(connection, tls)
            leaves = self._strangers.come(guest, source, time.monotonic())
            if leaves is not None:
                self._say("connections of strangers give way to newer ones", f"too many, the newest from {source}")
                self._dropped()
                leaves.leave()
            taken += 1
            if taken % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def _gone(self, guest: "_Guest") -> None:
        self._guests.pop(guest.inner, None)
        self._known.discard(guest)
        self._strangers.forget(guest)

    def _say(self, what: str, reason: str) -> None:
        """Once, and again when it still is so a minute later: a log that strangers fill helps nobody."""
        now = time.monotonic()
        if now >= self._said.get(what, -_SAY_AGAIN_S) + _SAY_AGAIN_S:
            self._said[what] = now
            logger.warning("%s reason=%s", what, reason)


class _Guest(asyncio.Protocol):
    """One connection: passes everything on to `inner`, and tells when it ends."""

    def __init__(self, inner: asyncio.Protocol, gone: Callable[["_Guest"], None]) -> None:
        self.inner = inner
        self._gone = gone
        self._transport: asyncio.Transport | None = None
        self._meeting: asyncio.Task[None] | None = None

    def meet(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        self._meeting = asyncio.create_task(self._meet(connection, tls))
        self._meeting.add_done_callback(lambda _: self._met(connection))

    def leave(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        else:
            self.leave_unmet()

    def leave_unmet(self) -> None:
        """Leave if there is nobody yet to talk to."""
        if self._transport is None and self._meeting is not None:
            self._meeting.cancel()

    async def _meet(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        patience = HELLO_S if tls else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self, connection, ssl=tls, ssl_handshake_timeout=patience
            )
        except (OSError, TimeoutError) as error:  # It went away, or is none that speaks TLS.
            logger.debug("a stranger was not met reason=%s", error)

    def _met(self, connection: socket.socket) -> None:
        if self._transport is None:
            connection.close()
            self._gone(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        self.inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self.inner.eof_received()

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._gone(self)
        self.inner.connection_lost(error)


def listen(host: str, port: int) -> socket.socket:
    """Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def open_files_max() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNBOUNDED if soft == resource.RLIM_INFINITY else soft


def raise_open_files_max() -> int:
    """Take all that the hard limit allows; what there is then. Children inherit it.

    Not for processes that start scripts of others: `select` cannot wait for a descriptor beyond 1023.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return open_files_max()
