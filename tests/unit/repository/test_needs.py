"""The plugin that leaves out and counts what a machine cannot run, and lets nothing skip itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from capabilities import CAPABILITIES, needed

LAYERS = Path(__file__).parents[2] / "layers"
CONFTEST = """
import pytest
from capabilities import CAPABILITIES, Capability
CAPABILITIES.update({
    "there": Capability("there", lambda: ""),
    "installed": Capability("installed", lambda: "there is no server", is_installed=True, fixtures={"server"}),
    "missing": Capability("missing", lambda: "only root may"),
    "bench": Capability("bench", lambda: "it is not installed", proved_by="make bench NAME=toy"),
})
import layer_times, needs
def pytest_addoption(parser):
    layer_times.add_options(parser)
    needs.add_options(parser)
def pytest_configure(config):
    needs.watch_needs(config)
    layer_times.watch_times(config)
@pytest.fixture
def server(): return 1
"""
TESTS = """
import pytest
def test_plain(): pass
@pytest.mark.needs("there")
def test_of_what_is_there(): pass
def test_of_a_server(server): pass
@pytest.mark.needs("missing")
@pytest.mark.parametrize("number", range(3))
def test_of_what_is_missing(number): pass
@pytest.mark.needs("bench", "there")
def test_of_a_bench(): pass
@pytest.mark.long
def test_that_takes_long(): pass
"""
SKIPS = """
import pytest
def test_in_its_middle(): pytest.skip("no such machine")
@pytest.mark.skip("never")
def test_marked(): pass
@pytest.fixture
def machine(): pytest.skip("no such machine")
def test_by_its_fixture(machine): pass
@pytest.mark.xfail
def test_expected(): assert False
def test_given_up(): pytest.xfail("no such machine")
"""
WHOLE = "make test FULL=1"
BENCH = {"reason": "bench: it is not installed", "proved_by": "make bench NAME=toy", "tests": 1}


def toy_run(folder: Path, text: str, *flags: str) -> "subprocess.CompletedProcess[str]":
    markers = "markers =\n    long: x\n    needs(*capabilities): x\n"
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {LAYERS}\n{markers}")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_toy.py").write_text(text)
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *flags]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def left_out(folder: Path) -> list[dict[str, object]]:
    said = json.loads((folder / "build" / "tests" / "toy.json").read_text())
    return sorted(said["not_proved"], key=lambda each: str(each["reason"]))


@pytest.mark.parametrize("flags", [(), ("-p", "xdist", "-n", "2")], ids=["one process", "two processes"])
def test_an_ordinary_run_leaves_out_what_is_lacking_or_long_and_counts_it_by_reason(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    ran = toy_run(tmp_path, TESTS, "--layer", "toy", "--here", *flags)
    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout
    assert left_out(tmp_path) == [
        BENCH,
        {"reason": "installed: there is no server", "proved_by": WHOLE, "tests": 1},
        {"reason": "missing: only root may", "proved_by": WHOLE, "tests": 3},
        {"reason": "takes long", "proved_by": WHOLE, "tests": 1},
    ]


@pytest.mark.parametrize(("percent", "code"), [("12", pytest.ExitCode.OK), ("13", pytest.ExitCode.USAGE_ERROR)])
def test_an_ordinary_run_that_would_leave_out_too_much_is_an_error(
    tmp_path: Path, percent: str, code: int
) -> None:
    ran = toy_run(tmp_path, TESTS, "--layer", "toy", "--here", "--keeps", percent)
    assert ran.returncode == code, ran.stdout
    assert ("1 of 8 tests need nothing and do not take long" in ran.stderr) is bool(code)


def test_a_whole_run_fails_what_is_lacking_and_leaves_to_a_bench_what_only_that_proves(tmp_path: Path) -> None:
    ran = toy_run(tmp_path, TESTS, "--layer", "toy")
    assert ran.returncode == 1
    assert "3 errors" in ran.stdout
    assert "it needs missing: only root may" in ran.stdout
    assert "4 passed" in ran.stdout, ran.stdout  # the server is installed by the test itself
    assert left_out(tmp_path) == [BENCH]


def test_a_layer_that_is_left_out_is_counted_whole_and_is_no_failure(tmp_path: Path) -> None:
    ran = toy_run(tmp_path, TESTS, "--layer", "toy", "--leave-out", "needs root")
    assert ran.returncode == 0, ran.stdout
    assert left_out(tmp_path) == [{"reason": "needs root", "proved_by": "make test-toy", "tests": 8}]


@pytest.mark.parametrize(
    ("flags", "failed"), [((), False), (("--layer", "toy"), True)], ids=["by hand", "a layer"]
)
def test_a_test_that_skips_itself_fails_in_a_layer(
    tmp_path: Path, flags: tuple[str, ...], *, failed: bool
) -> None:
    ran = toy_run(tmp_path, SKIPS, *flags)
    told = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    names = ("in_its_middle", "marked", "by_its_fixture", "expected", "given_up")
    assert [name for name in names if any(f"test_{name}" in line for line in told)] == list(names) * failed
    assert ("skipped itself, so that nobody counts it" in ran.stdout) is failed


@pytest.mark.parametrize(
    "first", ["pytest.importorskip('no_such_module')", "pytest.skip('not here', allow_module_level=True)"]
)
def test_a_module_that_skips_itself_whole_fails_a_layer(tmp_path: Path, first: str) -> None:
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n")
    text = f"import pytest\n{first}\ndef test_of_it(): pass\n"
    assert toy_run(tmp_path, text).returncode == 0
    ran = toy_run(tmp_path, text, "--layer", "toy")
    assert ran.returncode == pytest.ExitCode.INTERRUPTED
    assert "test_toy.py skipped itself, so that nobody counts it" in ran.stdout


def test_a_capability_that_nobody_knows_is_named_with_those_that_are(tmp_path: Path) -> None:
    ran = toy_run(tmp_path, "import pytest\n@pytest.mark.needs('redsi')\ndef test_of_it(): pass\n")
    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert "needs('redsi'): there is no such capability; there are: root, namespaces" in ran.stderr


def test_a_fixture_needs_what_its_capability_has() -> None:
    assert [each.name for each in needed((), ["tmp_path", "redis_server"])] == ["redis"]
    assert [each.name for each in needed(["redis", "namespaces"])] == ["namespaces", "redis"]
    assert {each.lacking() == "" for each in CAPABILITIES.values()} <= {True, False}
