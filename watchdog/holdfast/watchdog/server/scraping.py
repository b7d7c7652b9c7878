"""Who may scrape the metrics: whoever shows the token of a file, beside those who may read everything.

Prometheus shows one fixed token and cannot ask the API server for one that is made for the watchdog.
"""

import hmac
from pathlib import Path

from aiohttp import web

from holdfast.watchdog.server.answer import Handler, token_of


def or_by_token(handler: Handler, otherwise: Handler, token_file: Path | None) -> Handler:
    """`handler` for whoever shows the token, `otherwise` for everybody else. Without a file it is all of them."""

    async def check(request: web.Request) -> web.StreamResponse:
        wanted = _token(token_file)
        given = token_of(request).encode("utf-8", "surrogateescape")
        if wanted is not None and hmac.compare_digest(given, wanted.encode()):
            return await handler(request)
        return await otherwise(request)

    return check


def _token(path: Path | None) -> str | None:
    """Read for every request: mounted secrets change. None when there is none to compare with."""
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
