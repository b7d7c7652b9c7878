import pytest


@pytest.fixture(scope="module", autouse=True)
def warm(warm_runs: None) -> None:
    """Workers here are about what comes after a start."""
