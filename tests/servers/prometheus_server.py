"""A real Prometheus of a test's own, and its tools."""

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from debian_packages import packaged_program
from patience import patient
from server_process import ServerProcess, free_port

READY_S_MAX = patient(30.0)
ANSWER_S_MAX = patient(20.0)
Labels = Mapping[str, str]


@dataclass(frozen=True)
class Target:
    """One place to scrape, and the labels that discovery would put on its series."""

    address: str
    labels: Labels


@dataclass(frozen=True)
class Series:
    """One series and its newest value."""

    labels: Labels
    value: float


class PrometheusServer:
    """Scrapes what `scrape` names and evaluates the rules, both every second; keeps its data in `folder`."""

    def __init__(self, folder: Path, *, rules: Sequence[Path], token_file: Path | None = None):
        self.port = free_port()
        self._targets = folder / "targets.json"
        self._config = folder / "prometheus.yaml"
        self._config.write_text(yaml.safe_dump(self._settings(rules, token_file)))
        self.scrape(())
        command: list[str | Path] = [packaged_program("prometheus"), f"--config.file={self._config}"]
        command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{self.port}"]
        self.process = ServerProcess("prometheus", command, folder / "prometheus.log")

    def _settings(self, rules: Sequence[Path], token_file: Path | None) -> dict[str, Any]:
        job: dict[str, Any] = {
            "job_name": "tests",
            "file_sd_configs": [{"files": [str(self._targets)], "refresh_interval": "1s"}],
            "honor_labels": True,  # as the chart has it for agents
        }
        if token_file is not None:
            job["authorization"] = {"credentials_file": str(token_file)}
        every_second = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        return {"global": every_second, "rule_files": [str(each) for each in rules], "scrape_configs": [job]}

    def scrape(self, targets: Sequence[Target]) -> None:
        """Scrape these and no others from now on."""
        groups = [{"targets": [each.address], "labels": dict(each.labels)} for each in targets]
        fresh = self._targets.with_suffix(".new")
        fresh.write_text(json.dumps(groups))
        fresh.replace(self._targets)

    def start(self) -> None:
        """Returns when it answers."""
        self.process.start()
        self.process.wait_until(self._answers, READY_S_MAX)

    def stop(self) -> None:
        self.process.stop()

    def query(self, expression: str) -> list[Series]:
        """The expression now, an instant vector or a scalar. Raises QueryRefused."""
        result = self._get("query", query=expression)["data"]
        if result["resultType"] == "scalar":
            return [Series({}, float(result["result"][1]))]
        return [Series(each["metric"], float(each["value"][1])) for each in result["result"]]

    def firing(self, name: str) -> list[Series]:
        """The alert's instances that fire now."""
        return self.query(f'ALERTS{{alertname="{name}",alertstate="firing"}}')

    def alerts(self) -> list[dict[str, Any]]:
        """Every pending and firing alert with its labels and annotations."""
        answer: list[dict[str, Any]] = self._get("alerts")["data"]["alerts"]
        return answer

    def failing_rules(self) -> list[str]:
        """What a rule's evaluation died of, one sentence each."""
        groups = self._get("rules")["data"]["groups"]
        return [
            f"{rule['name']}: {rule['lastError']}"
            for group in groups
            for rule in group["rules"]
            if rule.get("lastError")
        ]

    def _get(self, path: str, **arguments: str) -> dict[str, Any]:
        address = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(address, timeout=ANSWER_S_MAX) as answer:
                decoded: dict[str, Any] = json.load(answer)
                return decoded
        except urllib.error.HTTPError as error:
            raise QueryRefused(f"{arguments}: {error.read().decode()}") from error

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=2.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class QueryRefused(Exception):
    """Prometheus does not take the query. The text is its answer."""


def run_tool(name: str, *arguments: str | Path, folder: Path, stdin: str = "") -> str:
    """What promtool or amtool says; fails with it where it does not end well."""
    command = [str(packaged_program(name)), *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder, input=stdin, capture_output=True, text=True, timeout=patient(60), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
