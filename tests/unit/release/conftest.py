"""What builds a release are scripts beside the package; they are imported from where they lie, and build once."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "release"))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The distributions.Distributions of this tree."""
    import distributions

    return distributions.build(tmp_path_factory.mktemp("dist"))
