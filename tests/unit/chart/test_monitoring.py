"""Rules, dashboards and runbooks against what the programs are: metrics, labels, commands, catalogues."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from helmchart import CHART, rendered

from holdfast.agent.metrics.table import AGENT_METRICS
from holdfast.api.condition import ConditionKind
from holdfast.api.metric import Metric
from holdfast.api.policy import XidAction
from holdfast.api.xid import CATALOGUE, XidClass
from holdfast.operator.metrics import JobConditions, Metrics
from holdfast.watchdog.metrics.table import WATCHDOG_METRICS

DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))
PROMETHEUS_OWN = {"up", "ALERTS"}


def rules() -> list[dict[str, Any]]:
    files = sorted((CHART / "rules").glob("*.yaml"))
    return [
        rule for file in files for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]
    ]


def expression_of(alert: str) -> str:
    found: str = next(each["expr"] for each in rules() if each.get("alert") == alert)
    return found


def exported() -> set[str]:
    """Every metric of Holdfast's programs, and of dcgm-exporter 4.9 and newer."""
    tables: tuple[Metric, ...] = (*AGENT_METRICS, *WATCHDOG_METRICS)
    operator = Metrics()
    operator.add(JobConditions(lambda: ()))
    of_operator = re.findall(r"^# TYPE (\S+)", operator.text().decode(), re.MULTILINE)
    newer = {name for rule in rules() if "record" in rule for name in re.findall(r"\bDCGM_\w+", rule["expr"])}
    return {each.name for each in tables} | set(of_operator) | newer


def asked_for(expression: str) -> set[str]:
    """The metrics that an expression names."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    return set(re.findall(r"\b(holdfast[_:][\w:]+|DCGM_\w+|up(?=\{)|ALERTS)", bare))


def panels(dashboard: Path) -> list[dict[str, Any]]:
    return [each for each in json.loads(dashboard.read_text())["panels"] if each["type"] != "row"]


def test_every_metric_that_is_asked_for_is_exported() -> None:
    recorded = {each["record"] for each in rules() if "record" in each}
    known = exported() | recorded | PROMETHEUS_OWN
    for rule in rules():
        asked_to_name = asked_for(rule.get("annotations", {}).get("summary", "").replace('"', ""))
        assert (asked_for(rule["expr"]) | asked_to_name) - known == set(), rule
    for dashboard in DASHBOARDS:
        for panel in panels(dashboard):
            for target in panel["targets"]:
                asked = asked_for(target["expr"])
                assert asked, panel["title"]
                assert asked - known == set(), panel["title"]


def test_dashboards_ask_for_gpus_by_what_is_recorded_of_either_generation() -> None:
    for dashboard in DASHBOARDS:
        raw = {
            name
            for panel in panels(dashboard)
            for target in panel["targets"]
            for name in asked_for(target["expr"])
            if name.startswith("DCGM_")
        }
        assert raw == set(), f"{dashboard.stem}: record it in rules/recording.yaml"


def test_the_alert_about_xids_knows_those_that_evict_or_speak_of_hardware() -> None:
    told = [
        row.xid
        for row in CATALOGUE.values()
        if row.action is XidAction.EVICT
        or (row.blames is XidClass.HARDWARE and row.action is not XidAction.IGNORE)
    ]
    wanted = "|".join(map(str, sorted(told)))
    assert f'xid=~"{wanted}"' in expression_of("HoldfastGpuXid"), f"write {wanted} in rules/gpus.yaml"


def test_every_condition_has_its_alert() -> None:
    alerted = {
        kind
        for rule in rules()
        if "alert" in rule
        for kinds in re.findall(r'holdfast_condition\{kind=~?"([^"]+)"', rule["expr"])
        for kind in kinds.split("|")
    }
    assert alerted == {each.value for each in ConditionKind}


def test_dashboards_are_those_that_the_script_makes() -> None:
    script = runpy.run_path(str(CHART.parent / "dashboards"))
    written: dict[Path, str] = script["written"]()
    assert sorted(written) == DASHBOARDS
    for path, text in written.items():
        assert path.read_text() == text, "run python helm/dashboards"


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_can_be_linked_to_and_read(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    assert dashboard["uid"] == path.stem
    assert {each["name"] for each in dashboard["templating"]["list"]} >= {"datasource"}
    alerts = {each["alert"] for each in rules() if "alert" in each}
    for panel in panels(path):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        linked = {link["url"].rpartition("/")[2].removesuffix(".md") for link in panel.get("links", [])}
        assert linked <= alerts, panel["title"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_do_not_overlap(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(path.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_chart_ships_dashboards_for_a_sidecar_when_asked() -> None:
    asked = {"metrics": {"dashboards": {"enabled": True}, "prometheusRule": {"runbooks": "https://wiki.example/"}}}
    shipped = [
        each
        for each in rendered(asked)
        if each["kind"] == "ConfigMap" and "-dashboard-" in each["metadata"]["name"]
    ]
    assert len(shipped) == len(DASHBOARDS)
    assert {each["metadata"]["labels"]["grafana_dashboard"] for each in shipped} == {"1"}
    for each in shipped:
        (name, text) = next(iter(each["data"].items()))
        assert json.loads(text)["uid"] == name.removesuffix(".json")
        assert "holdfast.dev/docs" not in text
    assert not [each for each in rendered() if "-dashboard-" in each["metadata"]["name"]]
