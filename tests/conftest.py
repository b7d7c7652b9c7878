"""What every layer has: it says where its time goes, and its limits hold on a slow machine."""

import pytest
from layer_times import pytest_addoption, pytest_configure
from patience import stretch_limits

__all__ = ["pytest_addoption", "pytest_configure"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    stretch_limits(items)
