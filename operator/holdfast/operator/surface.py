"""What the operator serves: health and readiness to anybody, metrics to whoever shows the token."""

import hmac
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiohttp import web

from holdfast.api.exposition import accepted
from holdfast.operator.metrics import Metrics

BODY_BYTES_MAX: Final = 1024


def surface(metrics: Metrics, token_file: Path | None, ready: Callable[[], str]) -> web.Application:
    """`ready` says what is still waited for, empty when nothing is."""

    async def healthz(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(request: web.Request) -> web.Response:
        waiting = ready()
        return web.Response(text=f"waiting for {waiting}\n" if waiting else "ok\n", status=503 if waiting else 200)

    async def show_metrics(request: web.Request) -> web.Response:
        wanted = _token(token_file)
        if wanted is None:
            refusal = {"error": "Start the operator with --metrics-token-file, a file with a token in it."}
            return web.json_response(refusal, status=503)
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), f"Bearer {wanted}".encode()):
            refusal = {"error": "Send the operator's metrics token as `Authorization: Bearer TOKEN`."}
            return web.json_response(refusal, status=401, headers={"WWW-Authenticate": "Bearer"})
        style = accepted(request.headers.get("Accept", ""))
        return web.Response(body=metrics.text(style), headers={"Content-Type": style.value})

    application = web.Application(client_max_size=BODY_BYTES_MAX)
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/readyz", readyz)
    application.router.add_get("/metrics", show_metrics)
    return application


def _token(path: Path | None) -> str | None:
    """Read for every request: mounted secrets change. None when there is none to compare with."""
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
