"""The alerts that need an operator: fired by faults of the real operator, the real watchdog and a node."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from alert_rig import Expected, Rig, alert_rig, expected
from fake_kubelet import FakeKubelet
from operator_rig import METRICS_TOKEN, Cluster, OperatorProcess, add_nodes, phase
from panels import Shower
from played_launchers import PlayedLaunchers
from prometheus_server import Target
from server_process import ServerProcess
from test_operator_with_watchdog import started_watchdog

pytestmark = [pytest.mark.needs("prometheus"), pytest.mark.timeout(240)]


@pytest.fixture
def watchdog_program(tmp_path: Path) -> Iterator[tuple[ServerProcess, str]]:
    with started_watchdog(tmp_path) as started:
        yield started


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    folder = tmp_path / "prometheus"
    folder.mkdir()
    with alert_rig(folder, METRICS_TOKEN) as rig:
        yield rig


async def test_alerts_about_an_operator_and_by_its_conditions(
    cluster: Cluster,
    kubelet: FakeKubelet,
    watchdog_program: tuple[ServerProcess, str],
    rig: Rig,
    tmp_path: Path,
) -> None:
    watchdog, address = watchdog_program
    operator = OperatorProcess(cluster.server, cluster.namespace, address, tmp_path, name="alerts")
    part = {"app_kubernetes_io_name": "holdfast", "app_kubernetes_io_component": "operator"}
    target = Target(f"127.0.0.1:{operator.port}", {**part, "namespace": cluster.namespace, "pod": "o-1"})
    rig.scraped.append(lambda: [target])

    async def fired(*alerts: Expected) -> None:
        await asyncio.to_thread(rig.until_fired, *alerts)

    async def over(*alerts: Expected) -> None:
        await asyncio.to_thread(rig.until_over, *alerts)

    job = cluster.id()
    degraded = expected("HoldfastJobDegraded", training_job=job)
    unheard = expected("HoldfastWatchdogUnreachable", training_job=job)
    nobody = expected("HoldfastNoOperatorLeads", namespace=cluster.namespace)
    try:
        async with PlayedLaunchers(kubelet, address, job) as launchers:
            await add_nodes(kubelet, 2)
            operator.start()
            await cluster.apply(nodes={"min": 2, "max": 2})
            await cluster.until("running", lambda seen: phase(seen) == "Running")
            await over(degraded, unheard, nobody)

            await kubelet.delete_node(kubelet.pods[next(iter(launchers.seats))].node)
            await fired(degraded)  # nowhere is room for the ranks that were there
            await kubelet.add_nodes([f"{cluster.namespace}-another"])
            await over(degraded)

            watchdog.kill()
            await fired(unheard)
            watchdog.start()
            await over(unheard)

            operator.kill()
            await fired(nobody)
            operator.start()
            await over(nobody)
            rig.assert_shown(Shower.OPERATOR, namespace=cluster.namespace)
    finally:
        operator.stop()
