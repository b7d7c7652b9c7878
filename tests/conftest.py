"""What every layer has: what it says of its time and of tests left out, and limits that hold on a slow machine."""

import gc
import os
import tempfile

import pytest
from hypothesis import HealthCheck, settings
from layer_times import add_options as add_times
from layer_times import watch_times
from needs import add_options as add_needs
from needs import watch_needs
from patience import stretch_limits

# The same examples in every run; and how long one takes says more of the machine than of what is tested.
settings.register_profile(
    "holdfast", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("holdfast")


def pytest_addoption(parser: pytest.Parser) -> None:
    add_times(parser)
    add_needs(parser)


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # what is imported and collected lives until the end
    os.environ.setdefault("HOLDFAST_CACHE", tempfile.mkdtemp(prefix="holdfast-cache-"))
    os.environ.setdefault(
        "OMP_NUM_THREADS", "1"
    )  # torch's threads burn a core each while they wait for the others
    os.environ.setdefault("HOLDFAST_CONSOLE", "0")  # of runs on this machine: those that test it ask for it
    watch_needs(config)
    watch_times(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    stretch_limits(items)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """From here on the collector passes over all that, which it would visit again and again."""
    gc.freeze()
    gc.enable()
