from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from apiserver import ApiServer, Refused
from fake_kubelet import FakeKubelet
from fake_watchdog_for_operator import FakeOperatorWatchdog
from operator_rig import Cluster, Nodes, OperatorProcess, eventually

from holdfast.operator.crd import definitions

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="session")
def defined(apiserver: ApiServer) -> ApiServer:
    """The API server, TrainingJobs known to it."""
    for definition in definitions().values():
        try:
            apiserver.call("POST", CRDS, definition)
        except Refused as refused:
            if refused.code != 409:
                raise
    return apiserver


@pytest.fixture
async def watchdog() -> AsyncIterator[FakeOperatorWatchdog]:
    async with FakeOperatorWatchdog() as watchdog:
        yield watchdog


@pytest.fixture
async def cluster(defined: ApiServer, namespace: str) -> AsyncIterator[Cluster]:
    cluster = Cluster(defined, namespace)
    await eventually("definitions served", lambda: _served(cluster))
    yield cluster
    await cluster.close()


@pytest.fixture
async def kubelet(cluster: Cluster) -> AsyncIterator[FakeKubelet]:
    async with Nodes(cluster.server, cluster.namespace) as kubelet:
        yield kubelet


@pytest.fixture
def operator(cluster: Cluster, watchdog: FakeOperatorWatchdog, tmp_path: Path) -> Iterator[OperatorProcess]:
    """Not started yet."""
    operator = OperatorProcess(cluster.server, cluster.namespace, watchdog.endpoint, tmp_path)
    try:
        yield operator
    finally:
        operator.stop()
        print(operator.log.read_text() if operator.log.exists() else "the operator was never started")


async def _served(cluster: Cluster) -> bool:
    """Definitions are served a moment after they were made."""
    try:
        await cluster.api.call("GET", cluster.path())
        await cluster.api.call("GET", cluster.path(plural="interventions"))
    except Refused as refused:
        if refused.code == 404:
            return False
        raise
    return True
