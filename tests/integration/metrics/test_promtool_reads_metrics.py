"""Prometheus' own tool reads what the programs export, and has nothing to say of its names, types and help."""

from pathlib import Path

import pytest
from full_picture import full_picture
from prometheus_server import run_tool

from holdfast.agent.jobstream import Connection
from holdfast.agent.metrics.exporter import DcgmNames, NodeMetrics
from holdfast.api.exposition import Page, Style
from holdfast.watchdog.metrics.table import WATCHDOG_METRICS

pytestmark = pytest.mark.needs("prometheus")


def test_the_agents_metrics(tmp_path: Path) -> None:
    of_node = NodeMetrics(
        full_picture(),
        node="node-1",
        build=("1.2.3", "ns/job"),
        clock=lambda: 100.5,
        connections=lambda: [Connection("ns/job", connected=True, reports=7, dropped=2)],
        dcgm=DcgmNames.ELSEWHERE,  # DCGM's names are not Holdfast's to choose
    )
    run_tool("promtool", "check", "metrics", folder=tmp_path, stdin=of_node.page().text(Style.CLASSIC))


def test_the_watchdogs_metrics(tmp_path: Path) -> None:
    page = Page(WATCHDOG_METRICS)
    for row in WATCHDOG_METRICS:
        page.put(row.name, 1, *row.labels)
    run_tool("promtool", "check", "metrics", folder=tmp_path, stdin=page.text(Style.CLASSIC))


@pytest.mark.parametrize("name", ["holdfast_job_loss_count", "holdfast_xid_errors_milliseconds"])
def test_promtool_does_look(tmp_path: Path, name: str) -> None:
    text = f"# HELP {name} A bad name.\n# TYPE {name} gauge\n{name} 1\n"
    with pytest.raises(AssertionError, match=name):
        run_tool("promtool", "check", "metrics", folder=tmp_path, stdin=text)
