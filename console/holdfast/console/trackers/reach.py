"""Which hosts a job may have called, and calling one of them.

A job file names addresses, and a process of Holdfast calls them: without a limit a tenant could have it call what
only the cluster can reach. So a cluster names the hosts. Nothing is redirected: what is called is what was named.
A name is looked up once for each call, and an address that can only be this machine's or its cloud's metadata
service is refused whatever its name.
"""

import http.client
import ipaddress
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from holdfast.api.errors import InvalidInput, Problem, Unavailable

EVERYTHING: Final = "*"
CALL_S: Final = 20.0
ANSWER_BYTES_MAX: Final = 4 << 20
_PORTS: Final = {"https": 443, "http": 80}
# Those that are not link-local. Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-IMDS-existing-instances.html
# https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16
# https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata
_METADATA: Final = frozenset({"fd00:ec2::254", "168.63.129.16", "100.100.100.200"})
AGAIN: Final = frozenset({408, 425, 429})
"""Statuses below 500 that say nothing against another try."""


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """HOST for its usual ports, or HOST:PORT; `*` allows everything, for who runs jobs of their own."""

    entries: tuple[str, ...] = ()

    def check(self, url: str, *, field: str) -> None:
        """Raises InvalidInput, which names the `field`, when `url` is none that may be called."""
        try:
            parts = urlsplit(url)
            host, usual, port = (parts.hostname or "").lower(), _PORTS.get(parts.scheme), parts.port
        except ValueError as error:
            raise InvalidInput(Problem(field, url, f"write https://HOST/path: {error}")) from error
        if usual is None or not host or parts.username is not None:
            raise InvalidInput(Problem(field, url, "write https://HOST/path, without a name and password"))
        if EVERYTHING in self.entries:
            return
        port = port or usual
        allowed = {entry.lower() for entry in self.entries}
        if f"{host}:{port}" not in allowed and not (host in allowed and port in _PORTS.values()):
            fix = (
                f"this cluster does not let jobs call {host}:{port}; add it to trackers.allowedHosts of the chart"
            )
            raise InvalidInput(Problem(field, url, fix))

    def check_address(self, address: str) -> None:
        """Raises Unavailable for one that is never a host of its own, unless everything is allowed."""
        found = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        no_host = found.is_loopback or found.is_link_local or found.is_multicast or found.is_unspecified
        no_host |= str(found) in _METADATA
        if EVERYTHING not in self.entries and no_host:
            raise Unavailable(f"{address} is no address that a job may have called")


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back. Of a redirection it is that, and nothing of where it points to."""

    status: int
    body: bytes

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    @property
    def may_change(self) -> bool:
        """Whether the same again may be answered otherwise."""
        return self.status >= 500 or self.status in AGAIN


def call(
    allowed: AllowedHosts, method: str, url: str, *, body: bytes = b"", headers: Mapping[str, str], field: str
) -> Reply:
    """One request. Raises InvalidInput for a host that may not be called, Unavailable without an answer."""
    allowed.check(url, field=field)
    parts = urlsplit(url)
    assert parts.hostname is not None
    secure = parts.scheme == "https"
    port = parts.port or _PORTS[parts.scheme]
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection = http.client.HTTPConnection(parts.hostname, port, timeout=CALL_S)
    try:
        connection.sock = _connected(allowed, parts.hostname, port)
        if secure:
            context = ssl.create_default_context()
            connection.sock = context.wrap_socket(connection.sock, server_hostname=parts.hostname)
        connection.request(method, path, body=body or None, headers={**headers, "Host": parts.netloc})
        answer = connection.getresponse()
        return Reply(answer.status, answer.read(ANSWER_BYTES_MAX))
    except (OSError, http.client.HTTPException) as error:  # a refused certificate is a ValueError too
        raise Unavailable(f"{parts.netloc} does not answer: {error or type(error).__name__}") from error
    except ValueError:  # its words may hold a credential
        fix = "give an address and credentials of plain ASCII, on one line"
        raise InvalidInput(Problem(field, url, fix)) from None
    finally:
        connection.close()


def _connected(allowed: AllowedHosts, host: str, port: int) -> socket.socket:
    """A connection to the address that was checked: the name is not looked up a second time."""
    trouble: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        allowed.check_address(str(address[0]))
        connected = socket.socket(family, kind, protocol)
        try:
            connected.settimeout(CALL_S)
            connected.connect(address)
        except OSError as error:
            connected.close()
            trouble = error
        else:
            return connected
    raise trouble or OSError(f"{host} has no address")
