"""What every layer has: it says where its time goes, and its limits hold on a slow machine."""

import gc
import os
import tempfile

import pytest
from hypothesis import HealthCheck, settings
from layer_times import pytest_addoption
from layer_times import pytest_configure as watch_times
from patience import stretch_limits
from skipped_proofs import watch_proofs

# The same examples in every run; and how long one takes says more of the machine than of what is tested.
settings.register_profile(
    "holdfast", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("holdfast")

__all__ = ["pytest_addoption"]


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # what is imported and collected lives until the end
    os.environ.setdefault("HOLDFAST_CACHE", tempfile.mkdtemp(prefix="holdfast-cache-"))
    os.environ.setdefault(
        "OMP_NUM_THREADS", "1"
    )  # torch's threads burn a core each while they wait for the others
    os.environ.setdefault("HOLDFAST_CONSOLE", "0")  # of runs on this machine: those that test it ask for it
    watch_times(config)
    watch_proofs(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    stretch_limits(items)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """From here on the collector passes over all that, which it would visit again and again."""
    gc.freeze()
    gc.enable()
