"""The line to an API server: requests and watches, and the login. Answers stay bytes; who asks decodes."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import aiohttp

from holdfast.api.errors import Unavailable
from holdfast.wire.kube.reply import Reply, refusal

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"

ANSWER_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 5.0
TAKEN_TIMEOUT_S: Final = 10.0  # a watch is answered at once, by a server that has room for it
CONNECTIONS_MAX: Final = 128
LINE_BYTES_MAX: Final = 16 * 1024 * 1024  # etcd takes objects of 1.5 MB, and a line is one object
TRIES: Final = 5
OVERLOADED_WAIT_MOST_S: Final = 10.0
# An API server compresses answers of 128 KB and more for whoever says that it can read them. Within a cluster that
# costs more than it saves. Source: `defaultGzipThresholdBytes` in
# https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/writers.go
COMPRESSED: Final = "gzip, deflate"
PLAIN: Final = "identity"

Counted = Callable[[str, str], None]


@dataclass(frozen=True)
class Request:
    """One request. `timeout_s` is for the whole answer, None for a watch, which has none. An answer longer than
    `bytes_max` is not read.
    """

    verb: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content: str = JSON
    timeout_s: float | None = ANSWER_TIMEOUT_S
    bytes_max: int | None = None


class TooLong(Unavailable):
    """The answer has more than `Request.bytes_max` bytes."""


class Login(Protocol):
    """Asked anew for each request: tokens are replaced."""

    server: str
    """The API server's URL."""
    server_name: str | None
    """The name its certificate is checked against, None for the one in the URL."""
    proxy: str | None
    """The proxy to take, None for none."""

    def tls(self) -> ssl.SSLContext | bool:
        """Trust and client certificate, as they are now."""

    async def headers(self) -> dict[str, str]:
        """What proves who we are."""

    async def load(self) -> None:
        """Make ready, before anything else. Raises InvalidInput."""

    async def reload(self) -> bool:
        """After a 401: read everything again; False when that would change nothing."""

    async def close(self) -> None:
        """No call follows."""


class ServiceAccount:
    """The account whose `token` and `ca.crt` Kubernetes mounts in `folder`; the token is read for each request.

    Raises Unavailable when made without a certificate to trust.
    """

    server_name: str | None = None
    proxy: str | None = None

    def __init__(self, server: str, folder: Path) -> None:
        self.server = server
        self._token = folder / "token"
        self._tls: ssl.SSLContext | bool = True
        if server.startswith("https://"):
            authority = folder / "ca.crt"
            try:
                self._tls = ssl.create_default_context(cafile=authority)
            except (OSError, ssl.SSLError) as error:
                raise Unavailable(
                    f"the API server's certificate authority {authority} cannot be read: {error}"
                ) from error

    def tls(self) -> ssl.SSLContext | bool:
        return self._tls

    async def headers(self) -> dict[str, str]:
        """Raises Unavailable."""
        try:
            return {"Authorization": f"Bearer {self._token.read_text(encoding='utf-8').strip()}"}
        except (OSError, UnicodeDecodeError) as error:
            raise Unavailable(f"our own token {self._token} cannot be read: {error}") from error

    async def load(self) -> None:
        pass

    async def reload(self) -> bool:
        return False

    async def close(self) -> None:
        pass


class KubeClient:
    """Opens by itself on first use, or by `open`.

    `counted` is told verb and code of every request, "error" when there was no answer. All methods raise
    Unavailable when there is no answer in time, and TooLong. `is_near`: the line is fast, so that nothing is
    compressed.
    """

    def __init__(
        self,
        login: Login,
        counted: Counted = lambda verb, code: None,
        *,
        connections: int = CONNECTIONS_MAX,
        is_near: bool = False,
    ) -> None:
        self._login = login
        self._counted = counted
        self._connections = connections
        self._encoding = PLAIN if is_near else COMPRESSED
        self._pool: _Pool | None = None
        self._left: set[_Pool] = set()  # what is still used of earlier ones

    async def open(self) -> None:
        """Read the login and make ready to connect. Raises InvalidInput."""
        await self._login.load()
        self._leave_pool()
        self._pool = self._new_pool()

    async def close(self) -> None:
        """End every connection."""
        await self._login.close()
        self._leave_pool()
        for pool in tuple(self._left):
            await pool.session.close()
        self._left.clear()

    async def send(self, request: Request) -> Reply:
        """The answer, whatever it says."""
        async with self._exchange(request) as answer:
            if request.bytes_max is None:
                return Reply(answer.status, await answer.read(), answer.headers)
            held = bytearray()
            async for chunk in answer.content.iter_any():
                held += chunk
                if len(held) > request.bytes_max:
                    raise TooLong(f"the answer to {request.verb} {request.path} exceeds {request.bytes_max} bytes")
            return Reply(answer.status, bytes(held), answer.headers)

    async def ask(self, request: Request, guard: Callable[[], None] = lambda: None) -> bytes:
        """What was asked for. `guard` is called before every try and may raise. Raises as `refusal` says, too."""
        for attempt in range(1, TRIES + 1):
            guard()
            reply = await self.send(request)
            if reply.status < 400:
                return reply.content
            # Both say that nothing was done, so every verb may be tried again.
            again = attempt < TRIES and reply.status in (401, 429)
            if not again or (reply.status == 401 and not await self._signed_in_again()):
                raise refusal(reply.status, reply.content)
            if reply.status == 429:
                retry_after = reply.headers.get("Retry-After", "")
                wait_s = float(retry_after) if retry_after.isdecimal() else 1.0
                await asyncio.sleep(min(wait_s, OVERLOADED_WAIT_MOST_S))
        raise AssertionError("the last try returns or raises")

    async def lines(self, request: Request, silence_s: float) -> AsyncGenerator[bytes, None]:
        """The lines of a watch, until the server ends it or nothing came for `silence_s`. The first is empty, and
        comes when the server takes it. Raises as `ask`.
        """
        async with self._exchange(request, max(TAKEN_TIMEOUT_S, silence_s + 1.0)) as answer:
            if answer.status >= 400:
                if answer.status == 401:
                    await self._signed_in_again()
                raise refusal(answer.status, await answer.read())
            yield b""
            held = bytearray()
            while chunk := await self._chunk(answer, silence_s):
                held += chunk
                if b"\n" not in chunk:
                    if len(held) > LINE_BYTES_MAX:
                        raise Unavailable(f"a line of the watch of {request.path} exceeds {LINE_BYTES_MAX} bytes")
                    continue
                *whole, rest = bytes(held).split(b"\n")
                held = bytearray(rest)
                for line in whole:
                    yield line

    @asynccontextmanager
    async def _exchange(
        self, request: Request, quiet_s: float | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """`quiet_s`: for how long nothing may come, not even that it is taken; None: for ever."""
        if self._pool is None and not self._left:
            await self.open()
        login, pool = self._login, self._enter_pool()
        said = {"Accept": JSON, "Accept-Encoding": self._encoding, "Content-Type": request.content}
        try:
            headers = said | await login.headers()
            async with pool.session.request(
                "GET" if request.verb == "WATCH" else request.verb,
                login.server + request.path,
                params=request.query,
                data=request.body,
                headers=headers,
                timeout=aiohttp.ClientTimeout(
                    total=request.timeout_s, sock_connect=CONNECT_TIMEOUT_S, sock_read=quiet_s
                ),
                proxy=login.proxy,
                server_hostname=login.server_name,
            ) as answer:
                self._counted(request.verb, str(answer.status))
                yield answer
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._counted(request.verb, "error")
            what = str(error) or type(error).__name__
            if isinstance(error, TimeoutError):
                self._leave_pool()
            if isinstance(error, TimeoutError) and not str(error) and request.timeout_s is not None:
                what = f"no answer within {request.timeout_s:g} s"
            raise Unavailable(f"the API server does not answer {request.verb} {request.path}: {what}") from error
        finally:
            await self._exit_pool(pool)

    async def _signed_in_again(self) -> bool:
        if not await self._login.reload():
            return False
        self._leave_pool()
        return True

    def _enter_pool(self) -> "_Pool":
        """Somebody more uses it."""
        pool = self._pool = self._pool or self._new_pool()
        pool.users += 1
        return pool

    def _new_pool(self) -> "_Pool":
        connector = aiohttp.TCPConnector(limit=self._connections, ssl=self._login.tls())
        # Proxies of the environment are the login's business: aiohttp would look for them, and for a netrc file,
        # with every request, which costs as much as the request.
        return _Pool(aiohttp.ClientSession(connector=connector, trust_env=False))

    def _leave_pool(self) -> None:
        """The next request takes a new connection: what made one silent, or void, may hold the others as well.

        What is under way goes on.
        """
        if self._pool is not None:
            self._left.add(self._pool)
            self._pool = None

    async def _exit_pool(self, pool: "_Pool") -> None:
        pool.users -= 1
        unused = {each for each in self._left if not each.users}
        self._left -= unused
        for each in unused:
            await each.session.close()

    async def _chunk(self, answer: aiohttp.ClientResponse, silence_s: float) -> bytes:
        """What comes next, nothing at the end."""
        silence = asyncio.timeout(silence_s)
        try:
            async with silence:
                return await answer.content.readany()
        except TimeoutError:
            if silence.expired():
                self._leave_pool()
                return b""
            raise


@dataclass(eq=False, slots=True)
class _Pool:
    """Connections, and how many requests are under way on them."""

    session: aiohttp.ClientSession
    users: int = 0
