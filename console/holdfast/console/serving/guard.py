"""What holds for every request, before any path is looked at: limits, and headers that keep a browser's page safe.

The page is served to browsers that hold a token. So nothing but this console's own scripts runs in it, nobody may
put it into a frame, and no answer is kept by a cache.
Source: https://cheatsheetseries.owasp.org/cheatsheets/HTTP_Headers_Cheat_Sheet.html
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import parse_qsl

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

BODY_BYTES_MAX: Final = 64 * 1024
PATH_BYTES_MAX: Final = 8 * 1024
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Guard:
    """The application with limits around it."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                is_static = scope["path"].startswith("/static/")
                kept = b"no-cache" if is_static else b"no-store"
                message["headers"] = [*message["headers"], *HEADERS, (b"cache-control", kept)]
            await send(message)

        if len(scope["raw_path"]) + len(scope["query_string"]) > PATH_BYTES_MAX:
            await _refuse(send_safely, 414, b"the path and its query are too long")
            return
        if any("token" in name.lower() for name, _ in parse_qsl(scope["query_string"].decode("latin-1"))):
            # It would be in the logs of everything between the browser and us.
            await _refuse(send_safely, 400, b"no token belongs into an address: send the header Authorization")
            return
        body = await _body(receive)
        if body is None:
            await _refuse(send_safely, 413, b"the body is larger than 64 KiB")
            return

        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        await self._app(scope, replay, send_safely)


async def _body(receive: Receive) -> bytes | None:
    """The whole body, None when it is too large; the rest of that is not read."""
    body: bytes = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return body
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            return None
        if not message.get("more_body", False):
            return body


async def _refuse(send: Send, status: int, sentence: bytes) -> None:
    body = b'{"error":"%s"}' % sentence
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
