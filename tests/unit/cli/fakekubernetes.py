"""An API server that answers from a table, on a thread, over real HTTP, and a kubeconfig for it."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

TOKEN = "bearer-of-jane"
VIEWER_TOKEN = "short-lived"
HOLDFAST = "/api/v1/namespaces/holdfast"
PROXY = f"{HOLDFAST}/services/holdfast-watchdog:http/proxy"
TOKEN_PATH = f"{HOLDFAST}/serviceaccounts/holdfast-viewer/token"
JOBS = "/apis/holdfast.dev/v1alpha1/namespaces/research/trainingjobs"
INTERVENTIONS = "/apis/holdfast.dev/v1alpha1/namespaces/research/interventions"
Answer = tuple[int, Any]
# What a standby behind the watchdog's service says; its status is that of an answer like any other.
STANDBY: Answer = (503, {"error": "this watchdog stands by; another one leads: ask again"})


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class FakeKubernetes:
    """`answers` by method and path, without the query; a callable makes its answer when it is asked."""

    kubeconfig: Path
    answers: dict[str, Answer | Callable[[Asked], Answer]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)


def refusal(code: int, reason: str, message: str, kind: str = "", name: str = "") -> Answer:
    """As the API server words one."""
    details = {"kind": kind, "name": name}
    return code, {"kind": "Status", "reason": reason, "message": message, "code": code, "details": details}


@contextlib.contextmanager
def fake_kubernetes(folder: Path) -> Iterator[FakeKubernetes]:
    """Serve. The watchdog's token can be had; whatever is not in the table is not found."""
    fake = FakeKubernetes(folder / "kubeconfig")
    fake.answers[f"POST {TOKEN_PATH}"] = (201, {"status": {"token": VIEWER_TOKEN}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(fake))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        write_kubeconfig(fake.kubeconfig, f"http://127.0.0.1:{server.server_address[1]}", {"token": TOKEN})
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def write_kubeconfig(path: Path, server: str, login: dict[str, Any]) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "jane", "namespace": "research"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "jane", "user": login}],
    }
    path.write_text(json.dumps(config))


def a_job(name: str = "gpt", **status: Any) -> dict[str, Any]:
    """A TrainingJob as the API server has it."""
    return {"metadata": {"name": name, "namespace": "research"}, "status": status}


def some_jobs(*jobs: dict[str, Any]) -> Answer:
    return 200, {"metadata": {}, "items": list(jobs)}


def _handler(fake: FakeKubernetes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def do_PATCH(self) -> None:
            self._answer()

        def _answer(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.loads(content) if content else None
            asked = Asked(self.command, self.path, dict(self.headers.items()), body)
            fake.asked.append(asked)
            path = self.path.partition("?")[0]
            known = fake.answers.get(f"{self.command} {path}", refusal(404, "NotFound", f"no {path}"))
            status, answer = known(asked) if callable(known) else known
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                status, answer = refusal(401, "Unauthorized", "Unauthorized")
            sent = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
            self.send_response(status)
            self.send_header("Content-Length", str(len(sent)))
            if answer is STANDBY[1]:
                self.send_header("X-Holdfast-Standing", "standby")
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: Any) -> None:
            return

    return Handler
