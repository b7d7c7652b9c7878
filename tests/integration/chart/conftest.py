from collections.abc import Iterator

import pytest
from apiserver import ApiServer
from cluster_asks import drop_definition
from helmchart import HelmChart


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApiServer]:
    """A server of its own: a chart owns objects that belong to the whole cluster."""
    server = ApiServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def chart(cluster: ApiServer) -> Iterator[HelmChart]:
    """The chart, not installed yet; what a test leaves installed is uninstalled, definitions and all."""
    release = HelmChart(cluster.admin_kubeconfig(), cluster.new_namespace("chart"))
    yield release
    release.uninstall()
    for plural in ("trainingjobs", "interventions", "noderemediations"):
        drop_definition(cluster, plural)
