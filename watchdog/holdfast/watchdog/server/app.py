"""The HTTP application: every path, what it needs, who serves it."""

import hmac
import logging
from pathlib import Path

import msgspec
from aiohttp import WSCloseCode, web

from holdfast.watchdog.auth import Authenticator, Role
from holdfast.watchdog.readership import GET_JOB, GET_LOG, LIST_JOBS, NoRights, Readership, Right
from holdfast.watchdog.server import reads, scrape, standing, submissions
from holdfast.watchdog.server.agents import serve_agent
from holdfast.watchdog.server.answer import Handler, plainly, token_of
from holdfast.watchdog.server.doors import READERSHIP, granted, guarded, reader
from holdfast.watchdog.server.launchers import serve_launcher
from holdfast.watchdog.server.operators import serve_operator
from holdfast.watchdog.server.outbox import Farewell
from holdfast.watchdog.server.watchdog import WATCHDOG, Watchdog

logger = logging.getLogger(__name__)

GOODBYE = Farewell(WSCloseCode.GOING_AWAY, "the watchdog is shutting down")
JOB = "/v1/jobs/{namespace}/{name}"
BY_ROLE = Readership(NoRights())


class Route(msgspec.Struct, frozen=True):
    """One path. `needs` is the role, or the right to read a job; None is open to everybody."""

    method: str
    path: str
    handler: Handler
    needs: Role | Right | None


ROUTES = (
    Route("GET", "/healthz", reads.healthz, None),
    Route("GET", "/livez", standing.livez, None),
    Route("GET", "/readyz", standing.readyz, None),
    Route("GET", "/metrics", scrape.metrics, Role.VIEW),
    Route("GET", "/v1/member", serve_launcher, Role.INGEST),
    Route("GET", "/v1/agent", serve_agent, Role.INGEST),
    Route("GET", "/v1/operator", serve_operator, Role.OPERATE),
    Route("GET", "/v1/jobs", reads.jobs, LIST_JOBS),
    Route("POST", "/v1/jobs", submissions.submit, Role.OPERATE),
    Route("DELETE", JOB, submissions.forget, Role.OPERATE),
    Route("GET", f"{JOB}/status", reads.job_status, GET_JOB),
    Route("GET", f"{JOB}/ranks", reads.ranks, GET_JOB),
    Route("GET", f"{JOB}/incidents", reads.incidents, GET_JOB),
    Route("GET", f"{JOB}/incidents/{{id}}", reads.incident, GET_JOB),
    Route("GET", f"{JOB}/plan", reads.plan, GET_JOB),
    Route("GET", f"{JOB}/round", reads.desired_round, GET_JOB),
    Route("GET", f"{JOB}/nodes", reads.nodes, GET_JOB),
    Route("GET", f"{JOB}/journal", reads.journal, GET_JOB),
    Route("GET", f"{JOB}/logs", reads.logs, GET_LOG),
    Route("POST", f"{JOB}/interventions", submissions.intervene, Role.OPERATE),
    Route("GET", f"{JOB}/forecast", submissions.foretell, GET_JOB),
)


def make_app(
    watchdog: Watchdog,
    authenticator: Authenticator,
    metrics_token_file: Path | None = None,
    readership: Readership = BY_ROLE,
) -> web.Application:
    """The application over a watchdog; until that is started, it only tells that it stands by.

    Whoever shows the token in `metrics_token_file` may read the metrics as well. `readership` says who may read
    which job.
    """
    middlewares = [plainly(watchdog.tally), standing.leaders_only(watchdog)]
    app = web.Application(middlewares=middlewares, client_max_size=submissions.BODY_BYTES_MAX)
    app[WATCHDOG] = watchdog
    app[READERSHIP] = readership
    app[scrape.SCRAPER] = scrape.Scraper()
    app.cleanup_ctx.append(scrape.watch_loop)
    for route in ROUTES:
        handler = route.handler
        if route.needs is not None:
            check = reader(route.needs) if isinstance(route.needs, Right) else granted(route.needs)
            handler = guarded(handler, check, authenticator)
        if route.handler is scrape.metrics:
            handler = or_by_token(route.handler, handler, metrics_token_file)
        app.router.add_route(route.method, route.path, handler)
    app.on_shutdown.append(_say_goodbye)
    return app


async def _say_goodbye(app: web.Application) -> None:
    """End every connection, so that peers look for the next watchdog at once."""
    for host in app[WATCHDOG].hosts():
        host.closing = True
        for connection in (*host.launchers.values(), *host.agents.values(), *host.operators):
            connection.outbox.finish(GOODBYE)


# Who may scrape the metrics: whoever shows the token of a file, beside those who may read everything.
#
# Prometheus shows one fixed token and cannot ask the API server for one that is made for the watchdog.


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
