"""Whether this watchdog lives, leads, and has its store: for probes, and for whoever comes while it stands by.

/livez     200 while the program runs; ending it over anything else would help nobody
/readyz    200 while it leads, with its fence, and while it could take over; 503 until it has asked for the lock
/healthz   200 while the store answers: who leads can record what it decides

Every answer of one that does not lead carries `X-Holdfast-Standing`. What only a leader can answer is refused with
503, and the connection is closed: a client that kept it would ask the same standby for ever.
"""

from aiohttp import web
from aiohttp.typedefs import Middleware

from holdfast.api.standing import STANDBY_STATUS, STANDING_HEADER, Standing
from holdfast.watchdog.server.answer import Handler, answer, refusal
from holdfast.watchdog.server.watchdog import WATCHDOG, Watchdog
from holdfast.watchdog.servicepeer import Readiness

# What a standby answers as well. Everything else would be answered from nothing.
FOR_STANDBY = frozenset({"/livez", "/readyz", "/healthz", "/metrics"})


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
