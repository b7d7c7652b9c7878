"""A watchdog as an installation runs it: a program of its own over a Redis, on a port that it comes back to."""

import json
import os
import sys
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import msgspec
from patience import patient
from prometheus_server import Target
from redis_server import RedisServer
from server_process import ServerProcess, free_port

from holdfast.api.intervention import InterventionAction, InterventionRequest
from holdfast.api.policy import Policy, RestartBudget

NAMESPACE, POD = "research", "w-1"
HELD_UP_S = 1.5
PASSWORD = "of the Redis of this test"
READY_S_MAX = patient(30.0)


class Installation:
    """One watchdog and its Redis."""

    def __init__(self, folder: Path, token_file: Path) -> None:
        self.redis = RedisServer(folder, password=PASSWORD)
        (folder / "password").write_text(PASSWORD)
        self.port = free_port()
        self._token_file = token_file
        command = [sys.executable, "-m", "holdfast.watchdog", "--identity", POD]
        command += ["--listen", f"127.0.0.1:{self.port}", "--store", f"redis://127.0.0.1:{self.redis.port}/0"]
        command += ["--store-password-file", str(folder / "password")]
        command += ["--token-file", str(token_file), "--state-file", str(folder / "watchdog.json")]
        self.watchdog = ServerProcess("watchdog", command, folder / "watchdog.log")

    @property
    def token(self) -> str:
        return self._token_file.read_text().strip()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when it leads."""
        self.redis.start()
        self.lead()

    def lead(self) -> None:
        self.watchdog.start()
        self.watchdog.wait_until(self._leads, READY_S_MAX)

    def stop(self) -> None:
        self.watchdog.stop()
        self.redis.stop()

    def hold_up(self) -> None:
        """Keep the watchdog off its processor for a moment."""
        self.watchdog.pause()
        time.sleep(HELD_UP_S)
        self.watchdog.resume()

    def target(self) -> Target:
        part = {"app_kubernetes_io_name": "holdfast", "app_kubernetes_io_component": "watchdog"}
        return Target(self.address, {**part, "namespace": NAMESPACE, "pod": POD})

    def ask(self, path: str, body: bytes | None = None) -> Any:
        """What it answers. Raises OSError."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{self.address}{path}", data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=patient(5.0)) as answer:
            return json.loads(answer.read() or b"null")

    def restart_job(self, job: str) -> None:
        """As `holdfast restart` asks for it."""
        wanted = InterventionRequest(uuid.uuid4().hex, job, InterventionAction.RESTART, "the script was mended")
        self.ask(f"/v1/jobs/{job}/interventions", msgspec.json.encode(wanted))

    def _leads(self) -> bool:
        try:
            return self.ask("/readyz")["fence"] is not None
        except OSError:
            return False


SCRIPT = """
import os, time
if not os.path.exists("mended"):
    raise KeyError("a column that the data does not have")
time.sleep(600)
"""


class FailingJob:
    """One launcher of a job whose script does not work before it is mended."""

    name = "research/failing"

    def __init__(self, installation: Installation, folder: Path) -> None:
        self._installation = installation
        self._folder = folder
        (folder / "train.py").write_text(SCRIPT.replace('"mended"', repr(str(folder / "mended"))))
        command = [sys.executable, "-m", "holdfast.agent.launch", "--member", "m-1", "--node", "n-1"]
        command += ["--rdzv-endpoint", installation.address, "--rdzv-id", self.name, "--nproc-per-node", "1"]
        command += ["--run-dir", str(folder), "--log-dir", str(folder / "logs"), "--memory-dir", str(folder)]
        environment = {**os.environ, "HOLDFAST_TOKEN": installation.token}
        command.append(str(folder / "train.py"))
        self._launcher = ServerProcess("launcher", command, folder / "launcher.log", environment)

    def submit(self) -> None:
        policy = Policy(job=self.name, nodes_min=1, nodes_max=1, restarts=RestartBudget(backoff_s=0.0))
        self._installation.ask("/v1/jobs", msgspec.json.encode(policy))
        self._launcher.start()

    def mend(self) -> None:
        """As whoever was paged does."""
        (self._folder / "mended").touch()
        self._launcher.stop()
        self._installation.restart_job(self.name)
        self._launcher.start()

    def stop(self) -> None:
        self._launcher.stop()
