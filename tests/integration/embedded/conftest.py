from collections.abc import Iterator

import pytest
from warm_source import parts_of_their_own


@pytest.fixture(scope="module", autouse=True)
def warm(warm_runs: None) -> None:
    """Runs here are about what comes after a start."""


@pytest.fixture(scope="module")
def own_command_lines(warm: None) -> Iterator[None]:
    """Of the processes of a run: for a module that finds them by those."""
    with pytest.MonkeyPatch.context() as patch:
        parts_of_their_own(patch)
        yield
