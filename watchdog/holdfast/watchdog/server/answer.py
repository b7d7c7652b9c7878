"""Answers over HTTP: JSON, and errors as one clear sentence."""

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from holdfast.api.errors import Fenced, HoldfastError, InvalidInput
from holdfast.watchdog.access.auth import Caller
from holdfast.watchdog.access.readership import Readership
from holdfast.watchdog.metrics.counts import Count, Tally

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class NotFound(HoldfastError):
    """What the path names is not there."""


STATUS = {NotFound: 404, InvalidInput: 400, Fenced: 503}
BEARER = "Bearer "
# The API server's proxy to services keeps the Authorization header for itself; this one it passes on.
TOKEN_HEADER = "X-Holdfast-Token"
CALLER = web.RequestKey("caller", Caller)
READERSHIP = web.AppKey("readership", Readership)


def answer(body: object, *, status: int = 200) -> web.Response:
    """`body` as JSON. JSON has no NaN: what may be one is a `status.Reading`, any other becomes null."""
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def refusal(status: int, sentence: str) -> web.Response:
    """An error as JSON."""
    return answer({"error": sentence}, status=status)


def token_of(request: web.Request) -> str:
    """What the caller presents; empty when it presents nothing."""
    if (own := request.headers.get(TOKEN_HEADER)) is not None:
        return own.strip()
    header = request.headers.get("Authorization", "")
    return header.removeprefix(BEARER) if header.startswith(BEARER) else ""


def plainly(tally: Tally) -> Middleware:
    """Middleware: every error becomes JSON with one sentence, and refusals are counted."""

    @web.middleware
    async def speak(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except web.HTTPException as error:
            response = refusal(error.status, error.text or error.reason)
            if (allow := error.headers.get("Allow")) is not None:
                response.headers["Allow"] = allow
        except HoldfastError as error:
            status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 503)
            response = refusal(status, str(error))
        if 400 <= response.status < 500:
            tally.add(Count.REFUSED_REQUESTS)
        return response

    return speak
