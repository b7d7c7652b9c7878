"""A console whose data are scripted: the page as it is served, the contract of its HTTP, and nothing behind it.

`FakeConsole` serves a `ScriptedJob` on loopback, in a thread; what a test changes about the job is told to every
page at once. It also plays jobs of a hundred thousand ranks, for the bench.
"""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Header, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from scripted_job import ScriptedJob
from server_process import free_port

import holdfast.console

STATIC = Path(holdfast.console.__path__[0]) / "static"
POLICY = "default-src 'self'"
OPERATOR, VIEWER = "token-of-an-operator", "token-of-a-viewer"
NAMES = {OPERATOR: ("olga", ["view", "logs", "operate"]), VIEWER: ("viktor", ["view"])}
KEEP_ALIVE_S = 1.0
STARTS_WITHIN_S = 20.0


class FakeConsole:
    """Serves one scripted job, again and again on the same port. Use `serving`."""

    def __init__(self, job: ScriptedJob) -> None:
        self.job = job
        self.port = free_port()
        self.asked: list[dict[str, Any]] = []  # every intervention, in the order in which they came
        self.loses_answers = 0  # of so many interventions to come the answer is lost, though they are taken
        self.runbook: dict[str, Any] | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._streams: list[tuple[asyncio.AbstractEventLoop, asyncio.Queue[str | None]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        settings = uvicorn.Config(
            self._app(), host="127.0.0.1", port=self.port, log_level="error", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise RuntimeError("the fake console did not start")
            time.sleep(0.01)

    def stop(self) -> None:
        """End it and every stream; the job stays."""
        if self._server is None or self._thread is None:
            return
        for loop, queue in self._streams:
            loop.call_soon_threadsafe(queue.put_nowait, None)
        self._server.should_exit = True
        self._thread.join(timeout=STARTS_WITHIN_S)
        self._streams.clear()

    def tell(self, event: str, value: Any) -> None:
        """Send one event to every page."""
        said = f"event: {event}\ndata: {json.dumps(value)}\n\n"
        for loop, queue in list(self._streams):
            with contextlib.suppress(RuntimeError):  # a stream whose server has ended
                loop.call_soon_threadsafe(queue.put_nowait, said)

    def tell_job(self) -> None:
        self.tell("job", self.job.document())

    # What it serves.

    def _app(self) -> FastAPI:
        app = FastAPI()
        app.mount("/static", StaticFiles(directory=STATIC), name="static")
        self._add_page(app)
        self._add_reads(app)
        self._add_commands(app)
        return app

    def _add_page(self, app: FastAPI) -> None:
        @app.middleware("http")
        async def guard(request: Request, call_next: Any) -> Response:
            answer: Response = await call_next(request)
            answer.headers["Content-Security-Policy"] = POLICY
            return answer

        @app.get("/")
        def page() -> FileResponse:
            return FileResponse(STATIC / "index.html")

        @app.get("/api/v1/whoami")
        def whoami(authorization: str = Header("")) -> dict[str, Any]:
            name, may = caller(authorization)
            return {"name": name, "may": may}

        @app.get("/api/v1/jobs")
        def jobs(authorization: str = Header("")) -> dict[str, Any]:
            caller(authorization)
            return {"jobs": [self.job.summary()]}

    def _add_reads(self, app: FastAPI) -> None:
        base = "/api/v1/jobs/{namespace}/{name}"

        def known(namespace: str, name: str, authorization: str) -> ScriptedJob:
            caller(authorization)
            if f"{namespace}/{name}" != self.job.name:
                raise HTTPException(404, f"there is no job {namespace}/{name}")
            return self.job

        @app.get(base)
        def document(namespace: str, name: str, authorization: str = Header("")) -> JSONResponse:
            return JSONResponse(known(namespace, name, authorization).document())

        @app.get(base + "/series")
        def series(namespace: str, name: str, points: int = 500, authorization: str = Header("")) -> JSONResponse:
            return JSONResponse(known(namespace, name, authorization).series(points))

        @app.get(base + "/ranks")
        def ranks(namespace: str, name: str, authorization: str = Header("")) -> Response:
            content = known(namespace, name, authorization).columns()
            return Response(content, media_type="application/octet-stream")

        @app.get(base + "/ranks/names")
        def names(namespace: str, name: str, authorization: str = Header("")) -> JSONResponse:
            return JSONResponse(known(namespace, name, authorization).names())

        @app.get(base + "/runbook/{symptom}")
        def runbook(namespace: str, name: str, symptom: str, authorization: str = Header("")) -> JSONResponse:
            known(namespace, name, authorization)
            if self.runbook is None:
                raise HTTPException(404, "this console has no runbook")
            return JSONResponse({"symptom": symptom, **self.runbook})

        @app.get(base + "/events")
        async def events(namespace: str, name: str, authorization: str = Header("")) -> StreamingResponse:
            known(namespace, name, authorization)
            return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        mine = (asyncio.get_running_loop(), queue)
        self._streams.append(mine)
        try:
            yield ": welcome\n\n"
            while True:
                try:
                    said = await asyncio.wait_for(queue.get(), KEEP_ALIVE_S)
                except TimeoutError:
                    said = ": still here\n\n"
                if said is None:
                    return
                yield said
        finally:
            with contextlib.suppress(ValueError):
                self._streams.remove(mine)

    def _add_commands(self, app: FastAPI) -> None:
        base = "/api/v1/jobs/{namespace}/{name}"

        @app.get(base + "/forecast")
        def forecast(request: str, authorization: str = Header("")) -> dict[str, Any]:
            caller(authorization)
            return self.job.forecast(json.loads(request))

        @app.post(base + "/interventions")
        def intervene(asked: dict[str, Any], authorization: str = Header("")) -> dict[str, Any]:
            name, may = caller(authorization)
            if "operate" not in may:
                raise HTTPException(403, f"this needs the role operate; {name} has {', '.join(may)}")
            self.asked.append(asked)
            if self.loses_answers:
                self.loses_answers -= 1
                raise HTTPException(503, "the watchdog does not answer")
            return {"id": asked["id"], "state": "Done", "outcome": f"{asked['action']} was done"}


def caller(authorization: str) -> tuple[str, list[str]]:
    """Name and rights of whoever sends this header. Raises HTTPException."""
    known = NAMES.get(authorization.removeprefix("Bearer "))
    if known is None:
        raise HTTPException(401, "this needs a valid token: send the header 'Authorization: Bearer TOKEN'")
    return known


@contextmanager
def serving(job: ScriptedJob) -> Iterator[FakeConsole]:
    """A console that serves `job`; it has ended afterwards."""
    console = FakeConsole(job)
    console.start()
    try:
        yield console
    finally:
        console.stop()


if __name__ == "__main__":  # to look at the page by hand: python tests/servers/fake_console.py
    with serving(ScriptedJob.of(nodes=64, racks=8)) as shown:
        shown.job.break_node(5)
        print(f"{shown.url}#token={OPERATOR}")
        while True:
            time.sleep(1.0)
            shown.tell("series", shown.job.advance())
            shown.tell("ranks", shown.job.told)
            shown.tell_job()
