"""The line to the API server: requests and watches. Answers stay bytes; who asks decodes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from holdfast.api.errors import Unavailable
from holdfast.operator.credentials import Credentials
from holdfast.operator.refusal import refusal

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"

ANSWER_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 5.0
CONNECTIONS_MAX: Final = 128
LINE_BYTES_MAX: Final = 16 * 1024 * 1024  # etcd takes objects of 1.5 MB, and a line is one object
TRIES: Final = 5
OVERLOADED_WAIT_MOST_S: Final = 10.0

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


def _count_nothing(verb: str, code: str) -> None:
    return None


def _always() -> None:
    return None


class ApiServer:
    """Use after `open`. `counted` is told verb and code of every request, "error" when there was no answer.

    Raises what `refusal` says, TooLong, and Unavailable when there is no answer in time.
    """

    def __init__(self, credentials: Credentials, counted: Counted = _count_nothing) -> None:
        self._credentials = credentials
        self._counted = counted
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Read the credentials and make ready to connect. Raises InvalidInput."""
        await self._credentials.load()
        await self._renew_session()

    async def close(self) -> None:
        """End every connection."""
        await self._credentials.close()
        if self._session is not None:
            await self._session.close()

    async def ask(self, request: Request, guard: Callable[[], None] = _always) -> bytes:
        """The answer's content. `guard` is called before every try and may raise."""
        for attempt in range(1, TRIES + 1):
            guard()
            async with self._exchange(request) as answer:
                content = await _content(answer, request)
                if answer.status < 400:
                    return content
                # Both say that nothing was done, so every verb may be tried again.
                again = attempt < TRIES and answer.status in (401, 429)
                wait_s = _wait_s(answer.headers.get("Retry-After", ""))
            if not again or (answer.status == 401 and not await self._signed_in_again()):
                raise refusal(answer.status, content)
            if answer.status == 429:
                await asyncio.sleep(wait_s)
        raise AssertionError("the last try returns or raises")

    async def lines(self, request: Request, silence_s: float) -> AsyncGenerator[bytes, None]:
        """The lines of a watch, until the server ends it or nothing came for `silence_s`."""
        async with self._exchange(request) as answer:
            if answer.status >= 400:
                if answer.status == 401:
                    await self._signed_in_again()
                raise refusal(answer.status, await answer.read())
            held = bytearray()
            while chunk := await _chunk(answer, silence_s):
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
    async def _exchange(self, request: Request) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None, "open() comes first"
        headers = {"Accept": JSON, "Content-Type": request.content} | await self._credentials.headers()
        timeout = aiohttp.ClientTimeout(total=request.timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self._session.request(
                "GET" if request.verb == "WATCH" else request.verb,
                self._credentials.server + request.path,
                params=request.query,
                data=request.body,
                headers=headers,
                timeout=timeout,
                proxy=self._credentials.proxy,
                server_hostname=self._credentials.server_name,
            ) as answer:
                self._counted(request.verb, str(answer.status))
                yield answer
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._counted(request.verb, "error")
            what = str(error) or type(error).__name__
            raise Unavailable(f"the API server does not answer {request.verb} {request.path}: {what}") from error

    async def _signed_in_again(self) -> bool:
        if not await self._credentials.reload():
            return False
        await self._renew_session()
        return True

    async def _renew_session(self) -> None:
        connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX, ssl=self._credentials.tls())
        # Proxies of the environment are the credentials' business: aiohttp would look for them, and for a netrc
        # file, with every request, which costs as much as the request.
        old, self._session = self._session, aiohttp.ClientSession(connector=connector, trust_env=False)
        if old is not None:
            await old.close()


async def _content(answer: aiohttp.ClientResponse, request: Request) -> bytes:
    if request.bytes_max is None:
        return await answer.read()
    held = bytearray()
    async for chunk in answer.content.iter_any():
        held += chunk
        if len(held) > request.bytes_max:
            raise TooLong(f"the answer to {request.verb} {request.path} exceeds {request.bytes_max} bytes")
    return bytes(held)


async def _chunk(answer: aiohttp.ClientResponse, silence_s: float) -> bytes:
    """What comes next, nothing at the end."""
    silence = asyncio.timeout(silence_s)
    try:
        async with silence:
            return await answer.content.readany()
    except TimeoutError:
        if silence.expired():
            return b""
        raise


def _wait_s(retry_after: str) -> float:
    return min(float(retry_after), OVERLOADED_WAIT_MOST_S) if retry_after.isdecimal() else 1.0
