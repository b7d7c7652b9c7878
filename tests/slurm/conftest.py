"""A Slurm cluster, and an ssh server, of this machine's own packages."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
import slurm_packages
from slurm_cluster import SlurmCluster


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install before the first test: no test's time limit allows for it. What fails is said by each test."""
    if session.items:
        with suppress(slurm_packages.SlurmMissing):
            slurm_packages.install()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster
