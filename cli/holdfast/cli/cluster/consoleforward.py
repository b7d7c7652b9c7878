"""The console of a cluster on this machine: requests to a port of loopback go to it through the API server.

The browser shows a secret made for this forwarding; what is shown to the console in its place is the token that
reads of jobs are made with anyway, asked for anew before it ends. So no token of the cluster is in the browser,
and whoever does not know the secret reads of no job.
"""

import hmac
import re
import secrets
import time
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final

from holdfast.api.errors import HoldfastError
from holdfast.cli.cluster import kubeapi
from holdfast.cli.cluster.proxiedline import TOKEN_HEADER, TOKEN_LIFE_S, ProxiedLine

BEARER: Final = "Bearer "
BODY_BYTES_MAX: Final = 64 * 1024
KEPT_BACK_S: Final = 60.0  # of a token's life
# What a browser sends: no part of it is an address of its own, or ends the path for whoever reads it next.
PATH: Final = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)(\?[^#\\]*)?")
# Of an answer's headers those that a browser needs; the rest is between the API server and us.
PASSED_BACK: Final = (
    "Content-Type",
    "Content-Security-Policy",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "Referrer-Policy",
    "Cache-Control",
    "Last-Modified",
    "ETag",
)


class TokenOfReads:
    """The newest token of `line`. Called from many threads; asked for twice at once it is only asked for twice."""

    def __init__(self, line: ProxiedLine, clock: Callable[[], float] = time.monotonic) -> None:
        self._line = line
        self._clock = clock
        self._token = ""
        self._until = 0.0

    def __call__(self) -> str:
        """Raises Unavailable, Forbidden."""
        if self._clock() >= self._until:
            self._token, self._until = self._line.new_token(), self._clock() + TOKEN_LIFE_S - KEPT_BACK_S
        return self._token


class Forwarder(ThreadingHTTPServer):
    """Listens on loopback at `port` (0: any free one). Use `serve_forever`; Ctrl-C ends it."""

    daemon_threads = True

    def __init__(self, api: kubeapi.KubeApi, service: str, token: Callable[[], str], port: int) -> None:
        """`service` is NAMESPACE/[SCHEME:]NAME:PORT. Raises OSError when the port is taken."""
        namespace, _, name = service.partition("/")
        self.secret = secrets.token_urlsafe(32)
        self.ask = token
        self.api = api
        self.path = f"/api/v1/namespaces/{namespace}/services/{name}/proxy"
        super().__init__(("127.0.0.1", port), _Request)

    @property
    def address(self) -> str:
        """Where the browser finds it, with the secret in the fragment, which is sent to nobody."""
        return f"http://127.0.0.1:{self.server_address[1]}/#token={self.secret}"


def is_below(path: str) -> bool:
    """Whether `path` stays below whatever it is put behind.

    Everything is asked for with the login of whoever forwards: a path that climbs, and that somebody on the way
    resolves, would be anybody's way to the whole cluster.
    Source: https://www.rfc-editor.org/rfc/rfc3986#section-5.2.4
    """
    found = PATH.fullmatch(path)
    return found is not None and not {".", ".."} & set(urllib.parse.unquote(found[1]).split("/"))


class _Request(BaseHTTPRequestHandler):
    server: Forwarder
    protocol_version = "HTTP/1.1"
    names: ClassVar[tuple[str, ...]] = ("127.0.0.1", "localhost")

    def do_GET(self) -> None:
        self._forward(None)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 <= length <= BODY_BYTES_MAX:
            self._refuse(413, "the body is larger than 64 KiB")
            return
        self._forward(self.rfile.read(length))

    def _forward(self, body: bytes | None) -> None:
        if self.headers.get("Host", "").partition(":")[0] not in self.names:
            self._refuse(421, "ask for it by 127.0.0.1")  # a page of another name that leads here
            return
        if not is_below(self.path):
            self._refuse(400, "this is no path of the console")
            return
        headers = {"Accept": self.headers.get("Accept", "*/*")}
        if (given := self.headers.get("Authorization", "")) != "":
            secret = given.removeprefix(BEARER).encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(secret, self.server.secret.encode()):
                self._refuse(401, "this needs the token that the command has printed")
                return
        try:
            if given:
                headers[TOKEN_HEADER] = self.server.ask()
            answer = self.server.api.opened(self.command, self.server.path + self.path, body, headers)
        except HoldfastError as error:
            self._refuse(503, str(error))
            return
        try:
            self._answer(answer)
        except OSError:
            self.close_connection = True  # the browser has gone
        finally:
            answer.close()

    def _answer(self, answer: Any) -> None:
        self.send_response(answer.status)
        for name in PASSED_BACK:
            if (value := answer.headers.get(name)) is not None:
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        while chunk := answer.read1():
            self.wfile.write(chunk)
            self.wfile.flush()

    def _refuse(self, status: int, sentence: str) -> None:
        content = b'{"error":"%s"}' % sentence.replace('"', "'").replace("\\", "/").encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what a browser asks for is nobody's business."""
