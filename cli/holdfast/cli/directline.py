"""The way to a watchdog by its address, over the standard library's HTTP client so that a read starts at once."""

import http.client
import random
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.api.errors import Unavailable
from holdfast.api.standing import STANDING_HEADER
from holdfast.cli.watchdogclient import MAX_ANSWER_BYTES
from holdfast.wire.access import Access, untrusted
from holdfast.wire.answer import from_leader, refusal

ANSWER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    headers: Mapping[str, str]
    content: bytes


class DirectLine:
    """Fills `watchdogclient.Line`. `token_of` says in an error whose token was not taken."""

    def __init__(self, access: Access, *, token_of: str) -> None:
        """Raises Unavailable when the token or the certificate authority cannot be read."""
        self._address = access.address
        self._token = access.credential.read()
        self._trusted = access.trust.context()
        self._token_of = token_of

    def ask(self, method: str, path: str, body: bytes | None = None, *, subject: str = "") -> bytes:
        reply = from_leader(lambda: self._ask_once(method, path, body))
        if reply.status >= 400:
            raise refusal(reply.status, reply.content, subject or path, self._token_of)
        return reply.content

    def _ask_once(self, method: str, path: str, body: bytes | None) -> _Reply:
        """Over a connection of its own, so that the name may lead to another watchdog."""
        connection = http.client.HTTPConnection(self._address.host, self._address.port, timeout=ANSWER_TIMEOUT_S)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        try:
            connection.sock = self._connected()
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            standing = {STANDING_HEADER: response.headers.get(STANDING_HEADER, "")}
            return _Reply(response.status, standing, response.read(MAX_ANSWER_BYTES))
        except ssl.SSLCertVerificationError as error:
            raise Unavailable(untrusted(self._address, error)) from error
        except (OSError, http.client.HTTPException) as error:
            where = f"{self._address} ({error})"
            raise Unavailable(f"the watchdog does not answer at {where}; is the run alive?") from error
        finally:
            connection.close()

    def _connected(self) -> socket.socket:
        """To any of the name's addresses: behind one is the leader. Raises OSError."""
        host, port = self._address.host, self._address.port
        *_, resolved = random.choice(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        connected = socket.create_connection((str(resolved[0]), port), timeout=ANSWER_TIMEOUT_S)
        if self._trusted is None:
            return connected
        try:
            return self._trusted.wrap_socket(connected, server_hostname=host)
        except BaseException:
            connected.close()
            raise
