"""A real API server, and the players that tests of the watchdog have."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "integration" / "watchdog"))

from fixtures import apiserver, pytest_collection_finish, pytest_collection_modifyitems

__all__ = ["apiserver", "pytest_collection_finish", "pytest_collection_modifyitems"]
