"""A real MLflow server over a file of its own, from an environment of its own outside the checkout.

    python tests/servers/mlflow_server.py      gets that environment before anybody needs it

Its application is served as it is, without the background jobs of `mlflow server`, which take longer to start than
a test to run.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from debian_packages import cache_folder, locked
from patience import patient

VERSION = "3.17.2"
SERVER_NEEDS = ("flask", "flask-cors", "sqlalchemy", "alembic", "graphene", "werkzeug")
SERVES = """
import os, sys
os.environ["_MLFLOW_SERVER_FILE_STORE"] = f"sqlite:///{sys.argv[1]}/mlflow.db"
os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = f"{sys.argv[1]}/artifacts"
from mlflow.server import app
from mlflow.server.handlers import _get_tracking_store
from werkzeug.serving import make_server

_get_tracking_store()
server = make_server("127.0.0.1", 0, app, threaded=True)
print(server.port, flush=True)
server.serve_forever()
"""


def mlflow_python() -> Path:
    """The Python that has it; installed now where it is not there yet, by one who comes first."""
    with locked("mlflow.lock"):
        return _installed()


def _installed() -> Path:
    folder = cache_folder() / f"mlflow-{VERSION}"
    python = folder / "bin" / "python"
    if python.exists():
        return python
    with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
        made = Path(unfinished) / "made"
        subprocess.run([sys.executable, "-m", "venv", made], check=True, timeout=600)
        pip = (made / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        subprocess.run([*pip, f"mlflow-skinny=={VERSION}", *SERVER_NEEDS], check=True, timeout=3600)
        # Without what it computes with: that is four times as large, and no server that keeps figures needs it.
        parts = (f"mlflow=={VERSION}", f"mlflow-tracing=={VERSION}")
        subprocess.run([*pip, "--no-deps", *parts], check=True, timeout=3600)
        shutil.move(made, folder)
    return python


class MlflowServer:
    """Asked as anybody would ask it."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(
            f"{self.uri}/api/2.0/mlflow/{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=patient(10.0)) as answer:
            return json.load(answer)

    def runs(self, experiment: str) -> list[Any]:
        found = self.ask(f"experiments/get-by-name?experiment_name={experiment}")["experiment"]
        runs: list[Any] = self.ask("runs/search", {"experiment_ids": [found["experiment_id"]]}).get("runs", [])
        return runs

    def history(self, run_id: str, metric: str) -> list[tuple[int, float]]:
        """Steps and values, in the order of the server."""
        path = f"metrics/get-history?run_id={run_id}&metric_key={metric}&max_results=25000"
        return [(each["step"], float(each["value"])) for each in self.ask(path).get("metrics", ())]


class StartingServer:
    """Starts at once, and is waited for when it is asked for: what can be done meanwhile may be done."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [mlflow_python(), "-W", "ignore", "-c", SERVES, folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._server: MlflowServer | None = None

    def started(self) -> MlflowServer:
        if self._server is None:
            assert self._process.stdout is not None
            self._server = MlflowServer(f"http://127.0.0.1:{int(self._process.stdout.readline())}")
        return self._server

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def starting_mlflow(folder: Path) -> Iterator[StartingServer]:
    """A server that is gone afterwards."""
    server = StartingServer(folder)
    try:
        yield server
    finally:
        server.stop()


if __name__ == "__main__":
    mlflow_python()
