"""The cells of the table of exact resumption: each pair of values is there, and what nobody can have is not."""

from itertools import combinations

from cells.axes import AXES, Cell, cells, covering
from cells.outcome import EXACT, LOST, REFUSED, Outcome
from exact import table


def test_a_covering_set_has_each_pair_of_values_that_any_cell_has() -> None:
    wanted = {pair for cell in cells() for pair in cell.pairs()}
    chosen = covering(seed=3)
    assert {pair for cell in chosen for pair in cell.pairs()} == wanted
    assert len(chosen) < len(cells()) / 100
    assert all(not cell.nonsense for cell in chosen)
    # Every value is there, and nearly every pair: what is left out has a reason of its own.
    every = {((one, a), (two, b)) for one, two in combinations(AXES, 2) for a in AXES[one] for b in AXES[two]}
    assert len(every - wanted) < 30


def test_a_seed_says_which_set() -> None:
    assert covering(1) == covering(1)
    assert covering(1) != covering(2)


def test_the_table_counts_by_value_what_became_of_the_cells_of_each_keeper() -> None:
    plain = Cell("sgd", "plain", "fp32", "nothing", "same world")
    other = Cell("adamw", "plain", "bf16", "nothing", "same world")
    found = [
        Outcome(plain, "holdfast", EXACT),
        Outcome(plain, "dcp", LOST, "schedule"),
        Outcome(other, "holdfast", EXACT),
        Outcome(other, "dcp", REFUSED, "KeyError"),
    ]
    lines = list(table(found))
    assert "| wrapping: plain | 2 | 0 | 2 | 0 | 0 | 0 | 1 | 1 |" in lines
    assert "| format: bf16 | 1 | 0 | 1 | 0 | 0 | 0 | 0 | 1 |" in lines
    assert lines[-1] == "| **all** | 2 | 0 | 2 | 0 | 0 | 0 | 1 | 1 |"
