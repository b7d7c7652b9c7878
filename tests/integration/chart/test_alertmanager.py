"""The Alertmanager example, read by amtool and tried on a real Alertmanager."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from alertmanager_server import AlertmanagerServer
from helmchart import CHART
from patience import patient
from prometheus_server import run_tool

pytestmark = pytest.mark.needs("alertmanager")

EXAMPLE = CHART / "examples" / "alertmanager.yaml"
JOB = {"namespace": "hf", "training_job": "a/gpt"}
OTHER_JOB = {"namespace": "hf", "training_job": "a/other"}
PATIENCE_S = patient(30.0)


def test_the_example_is_valid(tmp_path: Path) -> None:
    run_tool("amtool", "check-config", EXAMPLE, folder=tmp_path)


@pytest.mark.parametrize(
    ("severity", "receiver"), [("critical", "pager"), ("warning", "working-day"), ("info", "record")]
)
def test_only_what_is_critical_wakes_somebody(tmp_path: Path, severity: str, receiver: str) -> None:
    found = run_tool(
        "amtool", "config", "routes", "test", f"--config.file={EXAMPLE}", f"severity={severity}", folder=tmp_path
    )
    assert found.strip() == receiver


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AlertmanagerServer]:
    server = AlertmanagerServer(tmp_path_factory.mktemp("alertmanager"), EXAMPLE)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def test_who_is_told_of_the_cause_is_not_told_of_what_follows(alertmanager: AlertmanagerServer) -> None:
    gpu = {"node": "n7", "UUID": "GPU-1", "gpu": "1", "rack": "r7"}
    causes = [
        {"alertname": "HoldfastJobFailed", **JOB},
        {"alertname": "HoldfastRackHot", "rack": "r7"},
        {"alertname": "HoldfastStoreAway", "namespace": "hf", "pod": "w-1"},
        {"alertname": "HoldfastGpuLost", "node": "n8", "UUID": "GPU-2", "gpu": "2"},
        {"alertname": "HoldfastPreemptionNotice", "node": "n9"},
    ]
    follows = [
        {"alertname": "HoldfastJobDegraded", **JOB},
        {"alertname": "HoldfastIncidentNeedsHuman", **JOB, "node": "n8"},
        {"alertname": "HoldfastGpuHot", **gpu},
        {"alertname": "HoldfastGpuThrottled", **gpu},
        {"alertname": "HoldfastNobodyLeads", "namespace": "hf"},
        {"alertname": "HoldfastGpuXid", "node": "n8", "UUID": "GPU-2", "gpu": "2", "xid": "79"},
        {"alertname": "HoldfastAgentDown", "node": "n9"},
    ]
    others = [
        {"alertname": "HoldfastJobDegraded", **OTHER_JOB},
        {"alertname": "HoldfastGpuHot", **gpu, "rack": "r8"},
        {"alertname": "HoldfastGpuXid", "node": "n8", "UUID": "GPU-3", "gpu": "3", "xid": "48"},
        {"alertname": "HoldfastAgentDown", "node": "n8"},
    ]
    alertmanager.post(*causes, *follows, *others)
    deadline = time.monotonic() + PATIENCE_S
    while (quiet := _inhibited(alertmanager)) != _set(follows):
        assert time.monotonic() < deadline, f"inhibited: {sorted(quiet)}"
        time.sleep(0.2)


def _inhibited(alertmanager: AlertmanagerServer) -> set[frozenset[tuple[str, str]]]:
    return _set([each["labels"] for each in alertmanager.alerts() if each["status"]["inhibitedBy"]])


def _set(alerts: list[dict[str, str]]) -> set[frozenset[tuple[str, str]]]:
    return {frozenset(labels.items()) for labels in alerts}
