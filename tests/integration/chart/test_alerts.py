"""The chart's alerts, read and tried by Prometheus' own tool."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_asks import copied_chart
from helm_python import Chart
from helmchart import CHART, RELEASE

ALERTS = CHART / "alerts.yaml"
RUNBOOKS = Path(__file__).parents[3] / "docs" / "runbooks"
TRIALS = Path(__file__).parent / "alerts_test.yaml"


def promtool(*arguments: str | Path, folder: Path) -> None:
    program = shutil.which("promtool")
    assert program is not None, "promtool is not installed; it is in Debian's package prometheus"
    command = [program, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def alerts() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    return rules


def test_the_rules_are_valid(tmp_path: Path) -> None:
    promtool("check", "rules", ALERTS, folder=tmp_path)


def test_each_alert_fires_when_it_should_and_not_otherwise(tmp_path: Path) -> None:
    for file in (ALERTS, TRIALS):
        shutil.copy(file, tmp_path)
    promtool("test", "rules", TRIALS.name, folder=tmp_path)
    tried = TRIALS.read_text()
    assert [each["alert"] for each in alerts() if each["alert"] not in tried] == []


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_says_what_is_wrong_and_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("warning", "critical")
    assert {"summary", "description", "runbook_url"} == set(alert["annotations"])
    assert alert["annotations"]["runbook_url"].endswith(f"/{alert['alert']}.md")
    text = (RUNBOOKS / f"{alert['alert']}.md").read_text()
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == ["## What it means", "## What goes on", "## What to look at", "## What to do"]


def test_the_chart_carries_the_alerts_with_its_own_address_of_runbooks(tmp_path: Path) -> None:
    rule_values = {"enabled": True, "runbooks": "https://wiki.example/hf/", "labels": {"a": "b"}}
    rule = _with_prometheus(tmp_path, "prometheusrule", {"metrics": {"prometheusRule": rule_values}})[0]
    assert rule["metadata"]["labels"]["a"] == "b"
    made = rule["spec"]["groups"][0]["rules"]
    assert [each["expr"] for each in made] == [each["expr"] for each in alerts()]
    assert {each["annotations"]["runbook_url"].rpartition("/")[0] for each in made} == {"https://wiki.example/hf"}


def test_every_part_is_scraped_with_the_one_token(tmp_path: Path) -> None:
    monitors = _with_prometheus(tmp_path, "podmonitors", {"metrics": {"podMonitor": {"enabled": True}}})
    assert {each["metadata"]["name"].rpartition("-")[2] for each in monitors} == {"operator", "watchdog", "agent"}
    endpoints = [each["spec"]["podMetricsEndpoints"][0] for each in monitors]
    assert {each["authorization"]["credentials"]["name"] for each in endpoints} == {"holdfast-metrics"}


def _with_prometheus(folder: Path, template: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """What the template makes in a cluster that has Prometheus' operator, which nothing here has."""
    name = f"templates/{template}.yaml"
    known = {name: ('(.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")', "true")}
    with Chart.load(copied_chart(CHART, folder / "chart", known)) as chart:
        texts = chart.render(values, name=RELEASE, namespace="hf")
    text = next(text for path, text in texts.items() if path.endswith(name))
    return [document for document in yaml.safe_load_all(text) if document]
