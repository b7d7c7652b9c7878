"""What a launcher finds on its host: ports that it keeps reserved, an address that others reach, GPUs and cores.

Ports are reserved for the process-group stores of coming rounds, and for the transfer server. Each is bound with
SO_REUSEADDR and never listened on: no other process is given it, yet torch's TCPStore, which sets SO_REUSEADDR
too, can bind it and listen. Source: Linux socket(7), on when two sockets may bind one address,
https://man7.org/linux/man-pages/man7/socket.7.html
"""

import errno
import ipaddress
import itertools
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from holdfast.api.errors import Unavailable

_GPU_NODE = re.compile(r"nvidia\d+")
_TRIES: Final = 64


class ReservedPorts:
    """Holds `count` free ports of `address` until closed. Raises Unavailable when there are none."""

    def __init__(self, address: str, count: int) -> None:
        self._sockets: list[socket.socket] = []
        try:
            for _ in range(count):
                self._sockets.append(_reserved(address))
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

    def __exit__(self, *raised: object) -> None:
        self.close()


def _reserved(address: str) -> socket.socket:
    """A socket on a port of `address` that nobody uses on another address of this host: stores listen on
    all of them. Raises OSError.
    """
    for _ in range(_TRIES):
        reserved = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                reserved.bind((address, 0))
            except OSError as error:
                # Behind address translation the address others use is not one of this host's own.
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                reserved.bind(("", 0))
            if _is_free_on_all(reserved.getsockname()[1]):
                return reserved
        except BaseException:
            reserved.close()
            raise
        reserved.close()
    raise OSError(errno.EADDRINUSE, f"{_TRIES} ports in a row are in use on another address of this host")


def _is_free_on_all(port: int) -> bool:
    """A connection of this host that began from the port, on another address, keeps a store from listening."""
    is_dual = socket.has_dualstack_ipv6()
    with socket.socket(socket.AF_INET6 if is_dual else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_dual:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            probe.bind(("::" if is_dual else "", port))
        except OSError:
            return False
        return True


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


def is_loopback(host: str) -> bool:
    """Whether `host` names this machine by its loopback interface."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def gpu_count(environment: Mapping[str, str], *, devices: Path = Path("/dev")) -> int:
    """The GPUs this process may use: those CUDA_VISIBLE_DEVICES names, otherwise every NVIDIA device node.

    Counted without importing torch.
    Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#env-vars
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return sum(1 for entry in devices.iterdir() if _GPU_NODE.fullmatch(entry.name))
    # CUDA itself stops at the first entry that names no device.
    named = [entry.strip() for entry in visible.split(",")]
    return len(list(itertools.takewhile(lambda entry: entry not in ("", "-1"), named)))


def cpu_count() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0))
