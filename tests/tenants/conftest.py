"""A real API server, and the players that tests of the watchdog and the agent have."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "integration" / "watchdog"))
sys.path.append(str(Path(__file__).parents[1] / "unit" / "agent"))

import pytest
from apiserver import ApiServer
from fixtures import apiserver, pytest_collection_finish, pytest_collection_modifyitems
from neighbours import Tokens, tokens_of

__all__ = ["apiserver", "pytest_collection_finish", "pytest_collection_modifyitems"]


@pytest.fixture(scope="session")
def tokens(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return tokens_of(apiserver, tmp_path_factory.mktemp("tenants"))
