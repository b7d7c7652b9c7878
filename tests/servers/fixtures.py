"""Fixtures for the layers that need real servers. A layer's conftest imports them, once for all its folders:
imported in two places, a session's API server would be started twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from apiserver import ApiServer
from debian_packages import ProgramMissing
from kubernetes_binaries import kubernetes_program
from redis_server import RedisServer
from warm_source import warm_source


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark what needs Kubernetes by what it asks for. A module with API servers of its own says it itself."""
    for item in items:
        if "apiserver" in getattr(item, "fixturenames", ()):
            item.add_marker("kubernetes")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Get the programs before the first test: a build takes minutes, which no test's time limit allows."""
    if any(item.get_closest_marker("kubernetes") for item in session.items):
        for program in ("kube-apiserver", "kube-controller-manager", "kube-scheduler"):
            with suppress(ProgramMissing):  # said again to each test that needs it
                kubernetes_program(program)


@pytest.fixture(scope="session")
def apiserver() -> Iterator[ApiServer]:
    """One for the whole run; a test works in a namespace of its own and leaves the server running."""
    server = ApiServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def namespace(apiserver: ApiServer) -> str:
    return apiserver.new_namespace()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def warm_parents() -> Iterator[Mapping[str, str]]:
    """The environment in which the runs of this session share one import of torch."""
    with warm_source() as environment:
        yield environment


@pytest.fixture(scope="module")
def warm_runs(warm_parents: Mapping[str, str]) -> Iterator[None]:
    """What a module starts gets its warm parents forked: it is not about how they start."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in warm_parents.items():
            patch.setenv(name, value)
        yield
