"""A dozen cells of the table of exact resumption, others with each commit: none is lost, and none refused."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench"
sys.path.insert(0, str(BENCH))

from cells.axes import Cell, covering  # noqa: E402
from cells.outcome import EXACT, IMPOSSIBLE, outcome, undisturbed  # noqa: E402

SEED, COUNT = 1, 12  # of the set of docs/exact.md

pytestmark = pytest.mark.long


def of_this_commit() -> list[Cell]:
    """Without git the first."""
    git = ["git", "-C", str(BENCH), "rev-parse", "--short=8", "HEAD"]
    said = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    # Rows of one rank's part, in half the world: nobody can tell whose they are. docs/exact.md says so.
    refused = ("per row", "tp", "other world")
    chosen = [each for each in covering(SEED) if (each.optimizer, each.wrapping, each.life) != refused]
    first = int(said or "0", 16)
    return [chosen[(first + place) % len(chosen)] for place in range(COUNT)]


@pytest.mark.parametrize("cell", of_this_commit(), ids=str)
def test_a_run_that_is_cut_goes_on_bit_for_bit(cell: Cell) -> None:
    found = outcome(cell, "holdfast", undisturbed(cell))
    assert found.says in (EXACT, IMPOSSIBLE), found
