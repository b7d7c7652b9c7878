"""Who may scrape the metrics: whoever shows the token of a file, beside those who may read everything.

Prometheus shows one fixed token and cannot ask the API server for one that is made for the watchdog.
"""

import hmac
import logging
from pathlib import Path

from aiohttp import web

from holdfast.watchdog.server.answer import Handler, token_of

logger = logging.getLogger(__name__)


def or_by_token(handler: Handler, otherwise: Handler, token_file: Path | None) -> Handler:
    """`handler` for whoever shows the token, `otherwise` for everybody else. Without a file it is all of them."""
    known = None if token_file is None else _Token(token_file)

    async def check(request: web.Request) -> web.StreamResponse:
        wanted = known.read() if known else None
        given = token_of(request).encode("utf-8", "surrogateescape")
        if wanted is not None and hmac.compare_digest(given, wanted.encode()):
            return await handler(request)
        return await otherwise(request)

    return check


class _Token:
    """The token in a file, read for every request: mounted secrets change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._trouble: str | None = None

    def read(self) -> str | None:
        """None when there is none to compare with. Why the file cannot be read is logged once, until it can be."""
        try:
            token = self._path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                logger.warning("the metrics token cannot be read path=%s reason=%s", self._path, error)
            return None
        self._trouble = None
        return token or None
