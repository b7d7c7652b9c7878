"""A real Alertmanager of a test's own."""

import json
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from debian_packages import packaged_program
from patience import patient
from server_process import ServerProcess, free_port

READY_S_MAX = patient(30.0)


class AlertmanagerServer:
    """Runs with the given configuration, alone."""

    def __init__(self, folder: Path, config: Path):
        self.port = free_port()
        command: list[str | Path] = [packaged_program("prometheus-alertmanager"), f"--config.file={config}"]
        command += [f"--storage.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{self.port}"]
        command += ["--cluster.listen-address="]
        self.process = ServerProcess("alertmanager", command, folder / "alertmanager.log")

    def start(self) -> None:
        """Returns when it answers."""
        self.process.start()
        self.process.wait_until(self._answers, READY_S_MAX)

    def stop(self) -> None:
        self.process.stop()

    def post(self, *alerts: dict[str, str]) -> None:
        """Tell it of alerts that fire, by their labels, as Prometheus would."""
        since = datetime.now(UTC).isoformat()
        body = json.dumps([{"labels": labels, "startsAt": since} for labels in alerts]).encode()
        request = urllib.request.Request(
            f"{self._base}/alerts", data=body, headers={"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=patient(5.0)):
            pass

    def alerts(self) -> list[dict[str, Any]]:
        """Every alert it knows, with its labels, receivers and what silences it."""
        with urllib.request.urlopen(f"{self._base}/alerts", timeout=patient(5.0)) as answer:
            decoded: list[dict[str, Any]] = json.load(answer)
            return decoded

    @property
    def _base(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/v2"

    def _answers(self) -> bool:
        try:
            return bool(self.alerts() == [])
        except OSError:
            return False
