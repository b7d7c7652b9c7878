"""Ports kept reserved: for the process-group stores of coming rounds, and for the transfer server.

Each is bound with SO_REUSEADDR and never listened on: no other process is given it, yet torch's TCPStore, which
sets SO_REUSEADDR too, can bind it and listen. Source: Linux socket(7), on when two sockets may bind one address,
https://man7.org/linux/man-pages/man7/socket.7.html
"""

import errno
import ipaddress
import socket
from types import TracebackType
from typing import Self

from holdfast.api.errors import Unavailable


class ReservedPorts:
    """Holds `count` free ports of `address` until closed. Raises Unavailable when there are none."""

    def __init__(self, address: str, count: int) -> None:
        self._sockets: list[socket.socket] = []
        try:
            for _ in range(count):
                self._sockets.append(_reserve(address))
        except OSError as error:
            self.close()
            raise Unavailable(f"no port can be reserved on {address}: {error}") from error

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(reserved.getsockname()[1] for reserved in self._sockets)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Where to listen to have them, as "host:port"; an IPv6 host is in brackets."""
        names = (reserved.getsockname() for reserved in self._sockets)
        return tuple(f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}" for name in names)

    def close(self) -> None:
        for reserved in self._sockets:
            reserved.close()
        self._sockets.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _reserve(address: str) -> socket.socket:
    family = socket.AF_INET6 if _is_version_6(address) else socket.AF_INET
    reserved = socket.socket(family, socket.SOCK_STREAM)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(reserved, address)
    except OSError:
        reserved.close()
        raise
    return reserved


def _bind(reserved: socket.socket, address: str) -> None:
    try:
        reserved.bind((address, 0))
    except OSError as error:
        # Behind address translation the address others use is not one of this host's own.
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        reserved.bind(("", 0))


def _is_version_6(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).version == 6
    except ValueError:
        return False


def address_towards(host: str, port: int) -> str:
    """This machine's address on the way to `host`: the one other nodes can be expected to reach.

    Connecting a datagram socket only asks the routing table; nothing is sent. Raises Unavailable when the name
    does not resolve or no route leads there.
    """
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise Unavailable(f"the watchdog's address {host}:{port} cannot be reached: {error}") from error
