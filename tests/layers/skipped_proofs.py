"""A test that the promise table names as a proof is not skipped in `make test` or in CI.

Nothing would prove its promise, and nobody would be told. A pytest plugin that tests/conftest.py loads. Whoever
runs a file by hand may skip what the machine cannot do.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TABLE = Path("tests", "unit", "promises", "table")  # below the root of the run


def proofs_in(table: Path) -> frozenset[str]:
    """What the rows name, as FILE::NAME."""
    text = "\n".join(file.read_text() for file in sorted(table.glob("*.yaml")))
    return frozenset(re.findall(r"tests/[\w/]+\.py::test_\w+", text))


class SkippedProofs:
    """Turns a skip of one of `proofs` into a failure that says so."""

    def __init__(self, proofs: frozenset[str]) -> None:
        self._proofs = proofs

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report = yield
        file, _, name = item.nodeid.partition("[")[0].partition("::")
        test = f"{file}::{name.rpartition('::')[2]}"
        if report.skipped and not hasattr(report, "wasxfail") and test in self._proofs:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            report.outcome = "failed"
            report.longrepr = f"{test} is a proof of the promise table, and is not run here: {why}"
        return report


def watch_proofs(config: pytest.Config) -> None:
    """Hold it in a run of a layer, and in CI."""
    if config.getoption("--layer") is not None or os.environ.get("CI", "").lower() == "true":
        proofs = proofs_in(config.rootpath / TABLE)
        config.pluginmanager.register(SkippedProofs(proofs), "skipped-proofs")
