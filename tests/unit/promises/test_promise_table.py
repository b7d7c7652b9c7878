"""Every promise is in a table under table/, with the tests that exercise it for real.

A promise that is added without a row fails here, and so does a row whose promise or test is gone. A row is

    the promise: tests/integration/.../test_file.py::test_name     or a list of such

A proof runs a real part through its entry point: tests of the unit layer are none. What cannot be exercised so on
a machine of ours says why, and is proved as far as it can be:

    the promise: {not_for_real: "no machine here has an NVLink", proof: tests/unit/...::test_name}
"""

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from inventory import PROMISES, ROOT

TABLE = Path(__file__).parent / "table"
FOR_REAL = ("tests/integration/", "tests/cluster/", "tests/contract/", "tests/slurm/")
REASON_CHARACTERS_MIN = 20


def rows(family: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((TABLE / f"{family}.yaml").read_text())
    return found


def proofs(row: Any) -> Sequence[str]:
    named = row["proof"] if isinstance(row, dict) else row
    return [named] if isinstance(named, str) else list(named)


def problems_of(row: Any) -> Iterator[str]:
    """What is wrong with the proofs of one promise."""
    is_real = not isinstance(row, dict)
    if not is_real and len(str(row.get("not_for_real", ""))) < REASON_CHARACTERS_MIN:
        yield "says not why it cannot be exercised for real"
    if not proofs(row):
        yield "has no proof"
    for proof in proofs(row):
        file, _, name = proof.partition("::")
        if name not in named_in(file):
            yield f"{proof} is no test"
        if is_real and not file.startswith(FOR_REAL):
            yield f"{proof} runs no real part: name a test of {', '.join(FOR_REAL)}"


@cache
def named_in(file: str) -> frozenset[str]:
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(each.name for each in functions if each.name.startswith("test_"))


@pytest.mark.parametrize("family", PROMISES)
def test_every_promise_has_a_row_and_every_row_a_promise(family: str) -> None:
    promised, written = set(PROMISES[family]()), set(rows(family))
    assert sorted(promised - written) == [], "add a row with the test that exercises it"
    assert sorted(written - promised) == [], "nothing promises this any more: remove the row"


@pytest.mark.parametrize("family", PROMISES)
def test_every_proof_is_a_test_of_a_real_part(family: str) -> None:
    assert {name: said for name, row in rows(family).items() if (said := list(problems_of(row)))} == {}


def test_what_one_run_sees_as_zero_only_is_seen_moved_by_another_test() -> None:
    surface = "tests/integration/embedded/test_surface.py"
    tree = ast.parse((ROOT / surface).read_text())
    (only_zero,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ONLY_ZERO"
    ]
    table = rows("metrics")
    assert [name for name in only_zero if any(proof.startswith(surface) for proof in proofs(table[name]))] == []


def test_what_is_no_proof_is_told() -> None:
    here = "tests/unit/promises/test_promise_table.py"
    assert list(problems_of([])) == ["has no proof"]
    assert list(problems_of("tests/integration/none.py::test_x")) == [
        "tests/integration/none.py::test_x is no test"
    ]
    unreal = f"{here}::test_what_is_no_proof_is_told"
    assert [said.partition(":")[0] for said in problems_of(unreal)] == [here]
    assert list(problems_of({"not_for_real": "no machine here has one", "proof": unreal})) == []
    assert list(problems_of({"not_for_real": "", "proof": unreal})) == [
        "says not why it cannot be exercised for real"
    ]


def test_every_kind_of_promise_is_found() -> None:
    assert {family: len(list(found())) > 8 for family, found in PROMISES.items()} == dict.fromkeys(PROMISES, True)
