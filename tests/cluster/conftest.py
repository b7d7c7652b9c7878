from collections.abc import Iterator
from contextlib import suppress

import cluster_packages
import pytest
from cluster import Cluster
from debian_packages import ProgramMissing
from holdfast_images import BuildFailed, holdfast_archives
from kubernetes_binaries import CONTAINERD, NEWEST


def pytest_collection_finish(session: pytest.Session) -> None:
    """Get programs and images before the first test: a build takes minutes, which no test's time limit allows."""
    if any("cluster" in getattr(item, "fixturenames", ()) for item in session.items):
        with suppress(ProgramMissing, BuildFailed):  # said again to each test that needs it
            cluster_packages.install()
            for release in (NEWEST, CONTAINERD):
                for program in release.programs:
                    release.program(program)
            holdfast_archives()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One for the whole run. A test takes a namespace of its own and leaves every node Ready."""
    with Cluster(archives=holdfast_archives()) as cluster:
        yield cluster
