"""The TCP connections of this process, and how to free a thread that waits on the ones a round opened.

A collective of the gloo backend that waits for a dead or stopped peer returns only when its sockets do: the
backend's own `abort` and `shutdown` do nothing. Ending what arrives on its connections, from another thread,
makes the waiting thread raise an ordinary RuntimeError out of the collective within milliseconds. Linux only:
connections are found in /proc/self/fd.

Two things must not happen, both because gloo loses an operation whose send fails while its event loop answers
a peer: the thread that waits for that operation then waits for ever.

- Sending must not fail here, so only the receiving side is shut down.
- Sending must not fail at the peer before it has ended the round itself, so no connection may be closed, as
  gloo does when it notices the end: a duplicate of each is held until the next round stands.

One wait has no connection to end: of a rank that listens for a peer which leaves, or dies, between telling its
address and connecting. The launcher replaces a worker that does not leave in time.

Source: https://github.com/pytorch/pytorch/issues/130345 (gloo has no abort)
"""

import contextlib
import os
import re
import socket
from collections.abc import Iterator

DESCRIPTORS = "/proc/self/fd"
_SOCKET_LINK = re.compile(r"socket:\[(\d+)\]")


def open_sockets() -> frozenset[int]:
    """The inodes of all sockets this process holds now."""
    return frozenset(inode for _, inode in _descriptors())


class HeldConnections:
    """The TCP connections made since this object was, kept from closing. Not for use by two threads at once."""

    def __init__(self) -> None:
        self._spared = set(open_sockets())
        self._held: list[socket.socket] = []

    def hold(self) -> None:
        """Hold every connection that is not held yet. The owner may close it without the peer noticing.

        Listening sockets are left alone: gloo's event loop ends the process when one of its listeners fails.
        """
        for descriptor, inode in _descriptors():
            if inode in self._spared:
                continue
            connection = _duplicate(descriptor, inode)
            if connection is not None:
                self._spared.add(inode)
                self._held.append(connection)

    def end(self) -> None:
        """Hold those made so far, and let nothing more arrive: who waits to receive is told it has closed."""
        self.hold()
        for connection in self._held:
            with contextlib.suppress(OSError):  # The peer was faster, and is gone.
                connection.shutdown(socket.SHUT_RD)

    def release(self) -> None:
        """Let go: connections that nobody else holds are closed."""
        for connection in self._held:
            connection.close()
        self._held.clear()


def _descriptors() -> Iterator[tuple[int, int]]:
    for name in os.listdir(DESCRIPTORS):
        try:
            match = _SOCKET_LINK.fullmatch(os.readlink(f"{DESCRIPTORS}/{name}"))
        except OSError:
            continue  # Closed since it was listed.
        if match:
            yield int(name), int(match[1])


def _duplicate(descriptor: int, inode: int) -> socket.socket | None:
    """A duplicate of a TCP connection; None when the descriptor is anything else, or no longer that socket."""
    try:
        number = os.dup(descriptor)
    except OSError:
        return None
    # Checked on the duplicate, whose number cannot come to mean another file.
    if os.fstat(number).st_ino != inode:
        os.close(number)
        return None
    duplicate = socket.socket(fileno=number)
    if _is_connection(duplicate):
        return duplicate
    duplicate.close()
    return None


def _is_connection(candidate: socket.socket) -> bool:
    if candidate.family not in (socket.AF_INET, socket.AF_INET6) or candidate.type != socket.SOCK_STREAM:
        return False
    return not candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
