"""The plugin that lets no proof of the promise table be skipped, in a test run of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from skipped_proofs import TABLE, proofs_in

LAYERS = Path(__file__).parents[2] / "layers"
CONFTEST = """
from layer_times import pytest_addoption
from skipped_proofs import watch_proofs as pytest_configure
"""
SKIPS = """
import pytest
@pytest.mark.parametrize("number", [1])
def test_proof(number): pytest.skip("no such machine")
@pytest.mark.skip("never")
def test_marked(): pass
def test_other(): pytest.skip("no such machine")
@pytest.mark.xfail
def test_expected(): assert False
"""
ROWS = """
one: [tests/test_toy.py::test_proof, tests/test_toy.py::test_marked]
two: tests/test_toy.py::test_expected
"""


@pytest.mark.parametrize(
    ("flags", "ci", "failed"),
    [((), "", set()), (("--layer", "toy"), "", {"proof", "marked"}), ((), "true", {"proof", "marked"})],
    ids=["by hand", "a layer", "CI"],
)
def test_a_skipped_proof_fails_where_everything_is_to_run(
    tmp_path: Path, flags: tuple[str, ...], ci: str, failed: set[str]
) -> None:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {LAYERS}\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / TABLE).mkdir(parents=True)
    (tmp_path / TABLE / "metrics.yaml").write_text(ROWS)
    (tmp_path / "tests" / "test_toy.py").write_text(SKIPS)
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": ci}
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *flags]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    told = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    names = ("proof", "marked", "other", "expected")
    assert {name for name in names if any(f"test_{name}" in line for line in told)} == failed, ran.stdout
    assert ran.returncode == bool(failed)
    assert ("is a proof of the promise table, and is not run here" in ran.stdout) is bool(failed)


def test_the_tables_proofs_are_read() -> None:
    assert len(proofs_in(Path(__file__).parents[3] / TABLE)) > 50
