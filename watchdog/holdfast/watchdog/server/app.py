"""The HTTP application: every path, what it needs, who serves it."""

import hmac
import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from pathlib import Path

import msgspec
from aiohttp import WSCloseCode, web
from aiohttp.typedefs import Middleware

from holdfast.api.feed import FEED_PATH
from holdfast.api.fleet import FLEET_PATH
from holdfast.api.standing import STANDBY_STATUS, STANDING_HEADER, Standing
from holdfast.watchdog.access.auth import Authenticator, Caller, Role
from holdfast.watchdog.access.readership import (
    GET_JOB,
    GET_LOG,
    LIST_JOBS,
    Decision,
    Read,
    Readership,
    Right,
    decide,
)
from holdfast.watchdog.leadership import Readiness
from holdfast.watchdog.server import bulletins, jobs, scrape
from holdfast.watchdog.server.answer import (
    CALLER,
    READERSHIP,
    TOKEN_HEADER,
    Handler,
    answer,
    plainly,
    refusal,
    token_of,
)
from holdfast.watchdog.server.connection import Farewell
from holdfast.watchdog.server.feed import FEED, Feed, serve_feed
from holdfast.watchdog.server.identity import check_job
from holdfast.watchdog.server.peers import serve_agent, serve_launcher, serve_operator
from holdfast.watchdog.server.watchdog import WATCHDOG, Watchdog, review_loop
from holdfast.wire.door import Door

logger = logging.getLogger(__name__)

GOODBYE = Farewell(WSCloseCode.GOING_AWAY, "the watchdog is shutting down", waits=False)
JOB = "/v1/jobs/{namespace}/{name}"
BY_ROLE = Readership()

Check = Callable[[web.Request, Caller], Awaitable[str | None]]
"""Why the caller is refused, None when it is not."""

DOOR = web.AppKey("door", Door)
FULL = "this watchdog has as many connections as its limit of open files allows: raise the limit (ulimit -Hn)"

# What a standby answers as well. Everything else would be answered from nothing.
FOR_STANDBY = frozenset({"/livez", "/readyz", "/healthz", "/metrics"})


# Who may scrape the metrics: whoever shows the token of a file, beside those who may read everything.
#
# Prometheus shows one fixed token and cannot ask the API server for one that is made for the watchdog.


def or_by_token(handler: Handler, otherwise: Handler, token_file: Path) -> Handler:
    """`handler` for whoever shows the token in the file, `otherwise` for everybody else.

    The file is read for every request: mounted secrets change. Why it cannot be is logged once, until it can be.
    """
    trouble: str | None = None

    async def check(request: web.Request) -> web.StreamResponse:
        nonlocal trouble
        wanted = ""
        try:
            wanted = token_file.read_text(encoding="utf-8").strip()
            trouble = None
        except (OSError, UnicodeDecodeError) as error:
            if str(error) != trouble:
                trouble = str(error)
                logger.warning("the metrics token cannot be read path=%s reason=%s", token_file, error)
        given = token_of(request).encode("utf-8", "surrogateescape")
        if wanted and hmac.compare_digest(given, wanted.encode()):
            return await handler(request)
        return await otherwise(request)

    return check


# What a caller must be for each path: granted a role, or a reader of what the path is about.


def guarded(handler: Handler, check: Check, authenticator: Authenticator) -> Handler:
    """`handler`, for callers with a token whom `check` lets in."""

    async def ask(request: web.Request) -> web.StreamResponse:
        token = token_of(request)
        caller = await authenticator.caller(token) if token else None
        if caller is None:
            says = f"send the header 'Authorization: Bearer TOKEN' or '{TOKEN_HEADER}: TOKEN'"
            return refusal(401, f"this needs a valid token: {says}")
        door = request.app.get(DOOR)
        if door is not None and not door.admit(request.protocol):
            return refusal(503, FULL)
        why = await check(request, caller)
        if why is not None:
            return refusal(403, why)
        request[CALLER] = caller
        return await handler(request)

    return ask


class Needs(Enum):
    """What is no role and no right."""

    TOKEN = "a token"  # a valid one of anybody: the answer says what it is worth


def granted(needs: Role | Right | Needs) -> Check:
    """For whoever has the role, or holds any token where that is enough, or may read the job of the path; of
    a list, the handler leaves out what is not theirs.

    The check raises InvalidInput when the path names no job, Unavailable when Kubernetes cannot be asked.
    """

    async def check(request: web.Request, caller: Caller) -> str | None:
        if isinstance(needs, Needs):
            return None
        if isinstance(needs, Role):
            return None if needs in caller.roles else _lacks(needs, caller)
        decision = decide(caller, needs)
        if decision is Decision.REFUSED:
            return _lacks(Role.VIEW, caller)
        if decision is Decision.ALLOWED or "name" not in request.match_info:
            return None
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        check_job(f"{namespace}/{name}")
        if await request.app[READERSHIP].may(caller, Read(needs, namespace, name)):
            return None
        return (
            f"this needs the right to {needs} in namespace {namespace}, or the role view, and {caller.name} has "
            f"neither: bind a ClusterRole that has it (Holdfast's chart makes one, ...-view) with 'kubectl create "
            f"rolebinding --namespace {namespace}', or grant the role view in the chart's watchdog.grants"
        )

    return check


def _lacks(needs: Role, caller: Caller) -> str:
    held = ", ".join(sorted(role.value for role in caller.roles)) or "no role"
    return f"this needs the role {needs.value}; {caller.name} has {held}"


# Whether this watchdog lives, leads, and has its store: for probes, and for whoever comes while it stands by.
#
# /livez     200 while the program runs; ending it over anything else would help nobody
# /readyz    200 while it leads, with its fence, and while it could take over; 503 until it has asked for the lock
# /healthz   200 while the store answers: who leads can record what it decides
#
# Every answer of one that does not lead carries `X-Holdfast-Standing`. What only a leader can answer is refused
# with 503, and the connection is closed: a client that kept it would ask the same standby for ever.


async def livez(request: web.Request) -> web.Response:
    """Needs no token."""
    return answer({"status": "ok"})


async def readyz(request: web.Request) -> web.Response:
    """Needs no token; the fence is only a count of leaders.

    A standby that knows its store to be away is ready: it is as good as any other, and nobody could do better.
    """
    watchdog = request.app[WATCHDOG]
    told = Readiness(watchdog.standing, watchdog.leading)
    return answer(told, status=503 if told.status is Standing.STARTING else 200)


async def healthz(request: web.Request) -> web.Response:
    """Whether the store answers. Needs no token and tells no more than that."""
    trouble = request.app[WATCHDOG].trouble()
    if trouble is None:
        return answer({"status": "ok"})
    return answer({"status": "unavailable", "reason": trouble}, status=503)


def leaders_only(watchdog: Watchdog) -> Middleware:
    """Middleware: while this watchdog stands by, whoever asks is sent to look for the leader."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if watchdog.leading is not None:
            return await handler(request)
        if request.path in FOR_STANDBY:
            response = await handler(request)
        else:
            response = refusal(STANDBY_STATUS, "this watchdog stands by; another one leads: ask again")
            response.headers["Retry-After"] = "0"
            response.force_close()
        # Whoever waits for the lock, even for the first time, is a standby to those who look for the leader.
        response.headers[STANDING_HEADER] = Standing.STANDBY
        return response

    return check


class Route(msgspec.Struct, frozen=True):
    """One path. `needs` is the role, the right to read a job, or a token; None is open to everybody."""

    method: str
    path: str
    handler: Handler
    needs: Role | Right | Needs | None


ROUTES = (
    Route("GET", "/healthz", healthz, None),
    Route("GET", "/livez", livez, None),
    Route("GET", "/readyz", readyz, None),
    Route("GET", "/metrics", scrape.metrics, Role.VIEW),
    Route("GET", "/v1/member", serve_launcher, Role.INGEST),
    Route("GET", "/v1/agent", serve_agent, Role.INGEST),
    Route("GET", "/v1/operator", serve_operator, Role.OPERATE),
    Route("GET", FEED_PATH, serve_feed, Role.VIEW),
    Route("GET", "/v1/whoami", jobs.whoami, Needs.TOKEN),
    Route("GET", FLEET_PATH, jobs.fleet, Role.VIEW),
    Route("GET", "/v1/jobs", jobs.list_jobs, LIST_JOBS),
    Route("POST", "/v1/jobs", jobs.submit, Role.OPERATE),
    Route("DELETE", JOB, jobs.forget, Role.OPERATE),
    Route("GET", f"{JOB}/status", jobs.shows(jobs.status), GET_JOB),
    Route("GET", f"{JOB}/ranks", jobs.shows(jobs.ranks), GET_JOB),
    Route("GET", f"{JOB}/ledger", jobs.ledger, GET_JOB),
    Route("GET", f"{JOB}/incidents", jobs.incidents, GET_JOB),
    Route("GET", f"{JOB}/incidents/{{id}}", jobs.incident, GET_JOB),
    Route("GET", f"{JOB}/plan", jobs.shows(lambda host: host.job.state.plan), GET_JOB),
    # What the launchers are shown now: a round, or why there is none.
    Route("GET", f"{JOB}/round", jobs.shows(lambda host: host.job.state.desired), GET_JOB),
    Route("GET", f"{JOB}/nodes", jobs.nodes, GET_JOB),
    Route("GET", f"{JOB}/stacks", jobs.stacks, GET_JOB),
    Route("GET", f"{JOB}/profile", jobs.profiled, GET_JOB),
    Route("GET", f"{JOB}/journal", jobs.journal, GET_JOB),
    Route("GET", f"{JOB}/origin", jobs.origin, GET_JOB),
    Route("GET", f"{JOB}/bulletin", bulletins.bulletin, GET_JOB),
    Route("GET", f"{JOB}/logs", jobs.logs, GET_LOG),
    Route("POST", f"{JOB}/interventions", jobs.intervene, Role.OPERATE),
    Route("GET", f"{JOB}/forecast", jobs.foretell, GET_JOB),
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
    middlewares = [plainly(watchdog.tally), leaders_only(watchdog)]
    app = web.Application(middlewares=middlewares, client_max_size=jobs.BODY_BYTES_MAX)
    app[WATCHDOG] = watchdog
    app[READERSHIP] = readership
    app[scrape.SCRAPER] = scrape.Scraper()
    app[FEED] = Feed(watchdog)
    app.cleanup_ctx.append(scrape.watch_loop)
    app.cleanup_ctx.append(review_loop)
    for route in ROUTES:
        handler = route.handler
        if route.needs is not None:
            handler = guarded(handler, granted(route.needs), authenticator)
        if route.handler is scrape.metrics and metrics_token_file is not None:
            handler = or_by_token(route.handler, handler, metrics_token_file)
        app.router.add_route(route.method, route.path, handler)

    async def say_goodbye(_: web.Application) -> None:
        for host in watchdog.hosts():
            host.end_connections(GOODBYE)  # so that peers look for the next watchdog at once
        app[FEED].end_connections(GOODBYE)

    app.on_shutdown.append(say_goodbye)
    return app
