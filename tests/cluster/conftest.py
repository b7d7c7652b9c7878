from collections.abc import Iterator
from contextlib import suppress

import pytest
from cluster import PROGRAMS, Cluster
from kubernetes_binaries import ProgramMissing, kubernetes_program


def pytest_collection_finish(session: pytest.Session) -> None:
    """Get the programs before the first test: a build takes minutes, which no test's time limit allows."""
    if any("cluster" in getattr(item, "fixturenames", ()) for item in session.items):
        for program in PROGRAMS:
            with suppress(ProgramMissing):  # said again to each test that needs it
                kubernetes_program(program)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One for the whole run. A test takes a namespace of its own and leaves every node Ready."""
    with Cluster() as cluster:
        yield cluster
