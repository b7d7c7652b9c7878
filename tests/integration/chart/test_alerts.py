"""The chart's rules, read and tried by Prometheus' own tool, and what it makes of them."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_trials import trials, unit_tests
from cluster_asks import copied_chart
from helm_python import Chart
from helmchart import CHART, RELEASE
from prometheus_server import run_tool

RULES = sorted((CHART / "rules").glob("*.yaml"))
RUNBOOKS = Path(__file__).parents[3] / "docs" / "runbooks"
OF_RELEASE = ('{namespace!=""}', '{namespace="hf"}')
HEADINGS = ["Symptom", "What Holdfast did", "How to check", "What to do", "How to undo", "When to escalate"]


def groups() -> list[dict[str, Any]]:
    return [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for group in groups() for rule in group["rules"] if "alert" in rule]


@pytest.mark.needs("prometheus")
def test_the_rules_are_valid(tmp_path: Path) -> None:
    run_tool("promtool", "check", "rules", *RULES, folder=tmp_path)


@pytest.mark.needs("prometheus")
def test_each_alert_fires_names_the_culprit_and_clears(tmp_path: Path) -> None:
    (tmp_path / "trials.yaml").write_text(yaml.safe_dump(unit_tests([str(each) for each in RULES])))
    run_tool("promtool", "test", "rules", "trials.yaml", folder=tmp_path)
    assert {each.alert for each in trials()} == {each["alert"] for each in alerts()}


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_says_what_is_wrong_and_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("info", "warning", "critical")
    assert {"summary", "description", "runbook_url"} == set(alert["annotations"])
    assert alert["annotations"]["runbook_url"].endswith(f"/{alert['alert']}.md")
    assert "{{" in alert["annotations"]["summary"], "a summary names the culprit"
    lines = (RUNBOOKS / f"{alert['alert']}.md").read_text().splitlines()
    assert lines[0] == f"# {alert['alert']}"
    assert [line.removeprefix("## ") for line in lines if line.startswith("## ")] == HEADINGS


def test_every_runbook_has_its_alert() -> None:
    assert {each.stem for each in RUNBOOKS.glob("*.md")} == {each["alert"] for each in alerts()}


def test_the_chart_carries_the_rules_with_its_own_address_of_runbooks(tmp_path: Path) -> None:
    rule_values = {"enabled": True, "runbooks": "https://wiki.example/hf/", "labels": {"a": "b"}}
    rule = _with_prometheus(tmp_path, "prometheusrule", {"metrics": {"prometheusRule": rule_values}})[0]
    assert rule["metadata"]["labels"]["a"] == "b"
    made = rule["spec"]["groups"]
    assert [group["name"] for group in made] == [group["name"] for group in groups()]
    expressions = [[each["expr"] for each in group["rules"]] for group in made]
    here = [[each["expr"].replace(*OF_RELEASE) for each in group["rules"]] for group in groups()]
    assert expressions == here
    addresses = {
        each["annotations"]["runbook_url"].rpartition("/")[0]
        for group in made
        for each in group["rules"]
        if "alert" in each
    }
    assert addresses == {"https://wiki.example/hf"}


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, (2, 2, 2)),
        ({"redis": {"replicas": 5}, "watchdog": {"replicas": 3}, "operator": {"replicas": 4}}, (4, 3, 4)),
        ({"redis": {"replicas": 1}, "watchdog": {"replicas": 1}, "operator": {"replicas": 1}}, (0, 1, 1)),
        ({"redis": {"bundled": False, "external": {"url": "redis://elsewhere:6379/0"}}}, (0, 2, 2)),
    ],
    ids=["as it comes", "more", "one of each", "a Redis elsewhere"],
)
def test_redundancy_is_what_this_release_is_to_have(
    tmp_path: Path, values: dict[str, Any], wanted: tuple[int, ...]
) -> None:
    values = {**values, "metrics": {"prometheusRule": {"enabled": True}}}
    (rule,) = _with_prometheus(tmp_path, "prometheusrule", values)
    made = [each for group in rule["spec"]["groups"] for each in group["rules"]]
    (lost,) = [each["expr"] for each in made if each.get("alert") == "HoldfastRedundancyLost"]
    assert re.findall(r"< (\d+) # (.*)", lost) == [
        (str(count), what)
        for count, what in zip(
            wanted, ("redis.replicas - 1", "watchdog.replicas", "operator.replicas"), strict=True
        )
    ]
    assert lost.count(OF_RELEASE[1]) == 3


def test_every_part_is_scraped_with_the_one_token(tmp_path: Path) -> None:
    monitors = _monitors(tmp_path)
    assert set(monitors) == {"operator", "watchdog", "agent"}
    endpoints = [each["podMetricsEndpoints"][0] for each in monitors.values()]
    assert {each["authorization"]["credentials"]["name"] for each in endpoints} == {"holdfast-metrics"}


def test_an_agent_is_known_by_its_node_and_its_rack(tmp_path: Path) -> None:
    agent = _monitors(tmp_path, rackLabel="topology.kubernetes.io/rack")["agent"]
    assert agent["attachMetadata"] == {"node": True}
    sources = {
        each["targetLabel"]: each["sourceLabels"] for each in agent["podMetricsEndpoints"][0]["relabelings"]
    }
    assert sources == {
        "node": ["__meta_kubernetes_pod_node_name"],
        "rack": ["__meta_kubernetes_node_label_topology_kubernetes_io_rack"],
    }


def _monitors(folder: Path, **values: str) -> dict[str, dict[str, Any]]:
    """The specs of the PodMonitors by part."""
    made = _with_prometheus(folder, "podmonitors", {"metrics": {"podMonitor": {"enabled": True, **values}}})
    return {each["metadata"]["name"].rpartition("-")[2]: each["spec"] for each in made}


def _with_prometheus(folder: Path, template: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """What the template makes in a cluster that has Prometheus' operator, which nothing here has."""
    name = f"templates/{template}.yaml"
    known = {name: ('(.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")', "true")}
    with Chart.load(copied_chart(CHART, folder / "chart", known)) as chart:
        texts = chart.render(values, name=RELEASE, namespace="hf")
    text = next(text for path, text in texts.items() if path.endswith(name))
    return [document for document in yaml.safe_load_all(text) if document]
