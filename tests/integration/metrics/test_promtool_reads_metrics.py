"""Prometheus' own tool reads what the programs export, and has nothing to say of its names, types and help."""

from pathlib import Path

from full_picture import full_picture
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_server import run_tool

from holdfast.agent.exporter import DcgmNames, NodeCollector
from holdfast.agent.metrics.itself import Line


def test_the_agents_metrics(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    collector = NodeCollector(
        full_picture(),
        node="node-1",
        build=("1.2.3", "ns/job"),
        clock=lambda: 100.5,
        lines=lambda: [Line("ns/job", connected=True, reports=7, dropped=2)],
        dcgm=DcgmNames.ELSEWHERE,  # DCGM's names are not Holdfast's to choose
    )
    registry.register(collector)
    run_tool("promtool", "check", "metrics", folder=tmp_path, stdin=generate_latest(registry).decode())
