"""What a launcher finds on its host: ports that it keeps reserved, an address that others reach, GPUs and cores.

Ports are reserved for the process-group stores of coming rounds, and for the transfer server. Each is bound with
SO_REUSEADDR and never listened on: no other process is given it, yet torch's TCPStore, which sets SO_REUSEADDR
too, can bind it and listen. Source: Linux socket(7), on when two sockets may bind one address,
https://man7.org/linux/man-pages/man7/socket.7.html
"""

import errno
import fcntl
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
# Source: netdevice(7), SIOCGIFADDR and struct ifreq; /proc/net/if_inet6 has an address in a line, its name last.
_SIOCGIFADDR: Final = 0x8915
_IFREQ_BYTES: Final = 40
_IPV6_TABLE: Final = Path("/proc/net/if_inet6")


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


def gloo_environment(address: str, *, name: str | None = None) -> dict[str, str]:
    """What tells gloo which interface to use where this host's own `name` does not: it takes the first address of
    that name, and its loopback where there is none, so that ranks on other nodes cannot reach it. `address` is the
    one that others reach. Empty where the name is good, and where no interface of this host has the address.

    Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp (createDefaultDevice, GLOO_SOCKET_IFNAME)
    """
    if is_loopback(address) or _is_reached_by(socket.gethostname() if name is None else name):
        return {}
    interface = interface_of(address)
    return {} if interface is None else {"GLOO_SOCKET_IFNAME": interface}


def _is_reached_by(name: str) -> bool:
    """Whether the first address of this host among those of `name` is one that others may reach."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter of a label that is no name of the Internet's
        return False
    for family, kind, protocol, _, target in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(target)
        except OSError:
            continue  # of another host, or of a family that this one does not have
        return not is_loopback(str(target[0]))
    return False


def interface_of(address: str) -> str | None:
    """The network interface whose address this is; None where none has it, as behind address translation."""
    if ":" in address:
        wanted = ipaddress.IPv6Address(address.partition("%")[0]).packed.hex()
        lines = _IPV6_TABLE.read_text().splitlines() if _IPV6_TABLE.exists() else []
        return next((line.split()[-1] for line in lines if line.startswith(wanted)), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                told = fcntl.ioctl(probe, _SIOCGIFADDR, name.encode().ljust(_IFREQ_BYTES, b"\0"))
            except OSError:
                continue  # it has no address of this family
            if socket.inet_ntoa(told[20:24]) == address:
                return name
    return None


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
