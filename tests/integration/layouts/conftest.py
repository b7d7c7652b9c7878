from collections.abc import Iterator
from pathlib import Path

import pytest
from layouts_troupe import Troupe

RANKS = 8  # Enough for three dimensions of a mesh that are all more than one.


@pytest.fixture(scope="package")
def troupe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Troupe]:
    folder: Path = tmp_path_factory.mktemp("worlds")
    troupe = Troupe(RANKS, folder)
    yield troupe
    troupe.close()
