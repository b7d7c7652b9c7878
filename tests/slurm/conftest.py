"""A Slurm cluster, and an ssh server, of this machine's own packages."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import slurm_packages
from slurm_cluster import SlurmCluster


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install before the first test: no test's time limit allows for it. What fails is said by each test."""
    if session.items:
        with suppress(slurm_packages.SlurmMissing):
            slurm_packages.install()


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    """In a folder that every user may read, for Slurm's commands are also called by another one."""
    with TemporaryDirectory(prefix="holdfast-slurm-") as folder:
        Path(folder).chmod(0o755)
        with SlurmCluster(Path(folder)) as cluster:
            yield cluster
