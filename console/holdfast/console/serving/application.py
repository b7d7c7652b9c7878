"""The HTTP application: every path, who may read it, and what it answers."""

import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from holdfast.api.errors import HoldfastError, InvalidInput, Problem
from holdfast.console import serving
from holdfast.console.feed import Feed
from holdfast.console.heard import JobHeard
from holdfast.console.runbook.check import Check
from holdfast.console.serving import shapes
from holdfast.console.serving.authority import Authority, Refused
from holdfast.console.serving.checks import Runbook
from holdfast.console.serving.document import Documents, names_of, series_of, summary_of
from holdfast.console.serving.openapipage import page_of
from holdfast.console.serving.stream import Reader
from holdfast.wire.http import WatchdogHttp

STATIC: Final = Path(serving.__path__[0]).parent / "static"
READERS_MAX: Final = 512
POINTS_MAX: Final = 4096
JOB: Final = "/api/v1/jobs/{namespace}/{name}"
# The API server's proxy keeps the header Authorization for itself; an OIDC proxy puts the token into its own.
TOKEN_HEADERS: Final = ("X-Holdfast-Token", "X-Forwarded-Access-Token")
TROUBLES: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": shapes.Trouble, "description": why}
    for status, why in (
        (401, "no token, or one that the watchdog knows nobody by"),
        (403, "the caller may not"),
        (404, "there is no such job"),
        (503, "the watchdog is away, or nothing was heard yet"),
    )
}


def token_of(request: Request) -> str:
    """What the caller shows; empty when nothing. A proxy's header comes after the caller's own."""
    given = request.headers.get("Authorization", "")
    if given[:7].lower() == "bearer ":
        return given[7:].strip()
    return next((request.headers[name].strip() for name in TOKEN_HEADERS if name in request.headers), "")


class Console:
    """What the paths share: what was heard, who may read it, and the watchdog that commands go to."""

    def __init__(self, feed: Feed, http: WatchdogHttp, further: Sequence[Check] = ()) -> None:
        self.feed = feed
        self.http = http
        self.authority = Authority(http, time.monotonic)
        self.runbook = Runbook(http, further)
        self.readers = 0
        self._documents: dict[str, Documents] = {}

    def documents(self, job: JobHeard) -> Documents:
        """Shared by all readers of the job."""
        known = self._documents.get(job.job)
        if known is None or known.job is not job:
            self._documents = {name: each for name, each in self._documents.items() if name in self.feed.jobs}
            known = self._documents[job.job] = Documents(job)
        return known

    async def readable(self, request: Request) -> JobHeard:
        """The job of the path, for who may read it. Raises Refused, Unavailable."""
        name = f"{request.path_params['namespace']}/{request.path_params['name']}"
        await self.authority.reader(token_of(request), name)
        job = self.feed.jobs.get(name)
        if job is not None and job.told is not None:
            return job
        if self.feed.heard_at is None:
            raise Refused(503, "the watchdog has told nothing yet")
        raise Refused(404, f"there is no job {name}")

    async def passed_on(self, request: Request, what: str) -> Response:
        """The watchdog's own answer to the caller's own token: roles and audit are the watchdog's."""
        token = token_of(request)
        if not token:
            raise Refused(401, "this needs a token: send the header 'Authorization: Bearer TOKEN'")
        if request.method != "GET" and not _is_json(request):
            raise Refused(415, "send the header 'Content-Type: application/json'")
        names = [request.path_params[each] for each in ("namespace", "name")]
        if {".", ".."} & set(names):  # whoever reads the address next would resolve them
            raise Refused(404, f"there is no job {'/'.join(names)}")
        namespace, name = (urllib.parse.quote(each, safe="") for each in names)
        query = f"?{request.url.query}" if request.url.query else ""
        path = f"/v1/jobs/{namespace}/{name}/{what}{query}"
        body = await request.body() or None
        status, content = await self.http.answered(request.method, path, body, token)
        return Response(content, status, media_type="application/json")

    async def stream(self, job: JobHeard, check: Callable[[], Awaitable[object]]) -> AsyncIterator[bytes]:
        """A reader's events; ends when the reader may not read them any more."""
        self.readers += 1
        try:
            async for said in Reader(self.feed, job, self.documents, check).events():
                yield said
        except HoldfastError:  # refused; or nobody can say any more that he is not
            return
        finally:
            self.readers -= 1


def make_application(feed: Feed, http: WatchdogHttp, checks: Sequence[Check] = ()) -> FastAPI:
    """The application over a feed; commands go to the watchdog that `http` reaches. `checks` are run beside the
    built-in ones.
    """
    app = FastAPI(
        title="Holdfast console",
        description="Jobs as their watchdog tells of them. Every path under /api needs a token of the watchdog's.",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    console = Console(feed, http, checks)
    app.include_router(_page(app, console))
    app.include_router(_reads(console))
    app.include_router(_columns(console))
    app.include_router(_checks(console))
    app.include_router(_commands(console))
    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    def refuse(_: Request, error: Exception) -> JSONResponse:
        status = error.status if isinstance(error, Refused) else 400 if isinstance(error, InvalidInput) else 503
        return JSONResponse({"error": str(error)}, status)

    def explain(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)

    def correct(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        problem = Problem(str(first["loc"][-1]), str(first.get("input"))[:64], str(first["msg"]))
        return refuse(request, InvalidInput(problem))

    app.add_exception_handler(HoldfastError, refuse)
    app.add_exception_handler(RequestValidationError, correct)
    app.add_exception_handler(HTTPException, explain)
    return app


def _page(app: FastAPI, console: Console) -> APIRouter:
    """What needs no token: the page itself holds none, and knows of no job."""
    router = APIRouter()

    @router.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    @router.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page_of(app.openapi()))

    @router.get("/healthz", response_model=shapes.Health)
    async def healthz() -> Response:
        """200 once the watchdog has spoken, also while it is away again: what was heard is served on."""
        stale_s = console.feed.stale_s
        status = "waiting" if stale_s is None else "ok"
        return JSONResponse({"status": status, "stale_s": stale_s}, 503 if stale_s is None else 200)

    return router


def _reads(console: Console) -> APIRouter:
    router = APIRouter(responses=TROUBLES)

    @router.get("/api/v1/whoami", response_model=shapes.Caller)
    async def whoami(request: Request, job: str = Query("", examples=["research/gpt-70b"])) -> Response:
        """Who holds the token, and what it allows of the job; without one, of all jobs."""
        found = await console.authority.whoami(token_of(request), job)
        return JSONResponse({"name": found.name, "may": found.may})

    @router.get("/api/v1/jobs", response_model=shapes.Jobs)
    async def jobs(request: Request) -> Response:
        """The jobs that the caller may list."""
        found = await console.authority.whoami(token_of(request))
        listed = [
            summary_of(name, job.told)
            for name, job in sorted(console.feed.jobs.items())
            if job.told is not None and name.partition("/")[0] in found.namespaces
        ]
        return JSONResponse({"jobs": listed})

    @router.get(JOB, response_model=shapes.Document)
    async def document(request: Request) -> Response:
        """One job."""
        job = await console.readable(request)
        return _json(console.documents(job).whole(console.feed))

    @router.get(f"{JOB}/series", response_model=shapes.SeriesShape)
    async def series(request: Request, points: int = Query(500, ge=1, le=POINTS_MAX)) -> Response:
        """Its figures over the time for which this console has watched it, thinned to so many points."""
        return _json(series_of(await console.readable(request), points))

    return router


def _columns(console: Console) -> APIRouter:
    router = APIRouter(responses=TROUBLES)

    @router.get(f"{JOB}/ranks", responses={200: {"content": {"application/octet-stream": {}}}})
    async def ranks(request: Request) -> Response:
        """Each rank's node, step, phase, health, step time and loss, as columns of little-endian numbers: u32
        version (1), u32 n; n each of node index u32, step u32 (4294967295: unknown), phase u8, health u8 (0
        unknown, 1 fine, 2 suspect, 3 faulty), zeros to a multiple of 4 bytes, step time f32, loss f32 (NaN:
        unknown).
        """
        job = await console.readable(request)
        return Response(console.documents(job).ranks(), media_type="application/octet-stream")

    @router.get(f"{JOB}/ranks/names", response_model=shapes.Names)
    async def names(request: Request) -> Response:
        """What the numbers in the columns of ranks stand for."""
        return _json(names_of(await console.readable(request)))

    @router.get(f"{JOB}/events", responses={200: {"content": {"text/event-stream": {}}}})
    async def events(request: Request) -> Response:
        """`job` (the document; its incidents and nodes are null where they are as they were), `series` (a point),
        `incident` (one), `ranks` (a number that grows: read the columns again), `gone`. Of each kind only the
        newest is sent to a reader that falls behind.
        """
        job = await console.readable(request)
        if console.readers >= READERS_MAX:
            raise Refused(503, f"this console has {READERS_MAX} readers already")
        token, name = token_of(request), job.job
        stream = console.stream(job, lambda: console.authority.reader(token, name))
        return StreamingResponse(stream, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    return router


def _checks(console: Console) -> APIRouter:
    router = APIRouter(responses=TROUBLES)

    @router.get(f"{JOB}/runbook/{{symptom}}", response_model=shapes.Checks)
    async def runbook(request: Request, symptom: str) -> Response:
        """What an expert would check for the symptom, the likeliest suspect first."""
        job = await console.readable(request)
        return _json(await console.runbook.of(job.job, symptom, token_of(request)))

    return router


def _commands(console: Console) -> APIRouter:
    router = APIRouter(responses=TROUBLES)

    @router.get(f"{JOB}/forecast")
    async def forecast(request: Request) -> Response:
        """What the intervention in the query's `request` would do now, as the watchdog says it."""
        return await console.passed_on(request, "forecast")

    schema = shapes.Intervention.model_json_schema()
    body = {"requestBody": {"content": {"application/json": {"schema": schema}}, "required": True}}

    @router.post(f"{JOB}/interventions", openapi_extra=body)
    async def intervene(request: Request) -> Response:
        """Ask the watchdog for an intervention; it decides by the caller's own token, and journals it."""
        return await console.passed_on(request, "interventions")

    return router


def _is_json(request: Request) -> bool:
    """Whether the body says it is JSON. A form of another site's page cannot say so, and a proxy that signs people
    in by a cookie would put their token beside whatever it sends.
    Source: https://cheatsheetseries.owasp.org/cheatsheets/Cross-Site_Request_Forgery_Prevention_Cheat_Sheet.html
    """
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower() == "application/json"


def _json(content: bytes | object) -> Response:
    body = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return Response(body, media_type="application/json")
