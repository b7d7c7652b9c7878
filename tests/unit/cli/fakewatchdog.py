"""A watchdog that answers from a table, on a thread, over real HTTP."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
from wireobjects import JOB

from holdfast.cli.statedirectory import ListeningAt, RunningJob, StateDirectory

TOKEN = "secret"


class FakeWatchdog:
    """`answers` by method and path below the job's; `asked` keeps the bodies that were sent."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any] | Callable[[], tuple[int, Any]]] = {}
        self.asked: list[bytes] = []


@contextlib.contextmanager
def fake_watchdog(root: Path) -> Iterator[FakeWatchdog]:
    """Serve, and lay out `root` as the state directory of the run."""
    fake = FakeWatchdog()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(fake))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        lay_out(root, server.server_address[1])
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def lay_out(root: Path, port: int) -> StateDirectory:
    """The files of a run whose watchdog listens at `port`."""
    directory = StateDirectory(root)
    root.mkdir(parents=True, exist_ok=True)
    directory.watchdog_file.write_bytes(msgspec.json.encode(ListeningAt("127.0.0.1", port, 1)))
    directory.token_file.write_text(TOKEN)
    directory.write_running_job(RunningJob(JOB, "/job.yaml"))
    return directory


def _handler(fake: FakeWatchdog) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            fake.asked.append(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer("POST")

        def _answer(self, method: str) -> None:
            known = fake.answers.get(f"{method} {self.path.removeprefix(f'/v1/jobs/{JOB}/').partition('?')[0]}")
            status, body = (known() if callable(known) else known) or (404, {"error": "there is no such thing"})
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                status, body = 401, {"error": "this needs a valid token"}
            content = msgspec.json.encode(body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            return

    return Handler
