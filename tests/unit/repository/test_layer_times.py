"""The plugin that says where a layer's time goes, in a test run of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from layer_times import LayerTimes, Spent, read
from layers import AGAIN

BUSY = """
import subprocess, sys, time
WORK = "import time\\nwhile time.process_time() < 0.3: pass"
def test_works():
    end_s = time.process_time() + 0.3
    while time.process_time() < end_s: pass
def test_lets_a_child_work(): subprocess.run([sys.executable, "-S", "-c", WORK], check=True)
"""
IDLE = """
import pytest, time
def test_waits(): time.sleep(0.3)
@pytest.mark.xfail
def test_is_expected_to_fail(): raise ValueError
"""
FAILS = """
import pytest
@pytest.fixture
def broken(): raise OSError("no server")
def test_fails(): raise ValueError
def test_has_no_server(broken): pass
"""
CONFTEST = """
import layer_times, needs
def pytest_addoption(parser):
    layer_times.add_options(parser)
    needs.add_options(parser)
def pytest_configure(config):
    needs.watch_needs(config)
    layer_times.watch_times(config)
"""
FAILS_ONCE = """
import pathlib, pytest
@pytest.mark.parametrize("number", range(3))
def test_fails_at_first(number):
    seen = pathlib.Path(f"seen-{number}")
    was_there = seen.exists()
    seen.touch()
    assert was_there, f"first time of {number}"
"""
LAYERS = Path(__file__).parents[2] / "layers"


@pytest.mark.parametrize("flags", [(), ("-p", "xdist", "-n", "2")], ids=["one process", "two processes"])
def test_a_run_says_which_file_worked_and_which_waited(tmp_path: Path, flags: tuple[str, ...]) -> None:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {LAYERS}\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_busy.py").write_text(BUSY)
    (tmp_path / "test_idle.py").write_text(IDLE)
    (tmp_path / "test_fails.py").write_text(FAILS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--layer", "toy", *flags]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the other plugins take a second each
    said = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    ).stdout
    assert "where the time of toy goes" in said, said

    layer = read(tmp_path / "build" / "tests" / "toy.json")
    busy, idle = layer.files["test_busy.py"], layer.files["test_idle.py"]
    assert (busy.tests, idle.tests) == (2, 2)
    assert {test for test, record in layer.tests.items() if record.failed} == {
        "test_fails.py::test_fails",
        "test_fails.py::test_has_no_server",
        "test_idle.py::test_is_expected_to_fail",  # whatever it is about was not proved
    }
    assert layer.tests["test_idle.py::test_waits"].wall_s > 0.3
    assert busy.cpu_s > 0.55  # its own work and its child's
    assert idle.wall_s > 0.3
    assert idle.cpu_s < busy.cpu_s / 2
    assert layer.cpu_s > busy.cpu_s + idle.cpu_s  # imports and collection too


def test_two_tests_of_a_layer_run_again_and_the_layer_counts_and_shows_them(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {LAYERS}\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_fails.py").write_text(FAILS_ONCE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--layer", "toy"]
    command += ["-p", "pytest_rerunfailures", *AGAIN]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert ran.returncode == 1, ran.stdout  # the third
    assert "1 failed, 2 passed, 2 rerun" in ran.stdout
    assert "first time of 1" in ran.stdout  # of one that passed in the end
    records = read(tmp_path / "build" / "tests" / "toy.json").tests.values()
    assert (sum(each.run_again for each in records), sum(each.failed for each in records)) == (2, 1)


def test_the_slowest_file_comes_first_and_the_layer_last() -> None:
    layer = LayerTimes("toy", wall_s=12.0, cpu_s=7.0)
    layer.add("quick::one", wall_s=1.0, cpu_s=1.0, ends_test=True)
    layer.add("slow::one", wall_s=1.0, cpu_s=0.5, ends_test=False)
    layer.add("slow::one", wall_s=9.0, cpu_s=2.0, ends_test=True)
    header, *files, last = layer.table()
    assert "waiting" in header
    assert [line.split() for line in files] == [
        ["10.0", "2.5", "75%", "1", "slow"],
        ["1.0", "1.0", "0%", "1", "quick"],
    ]
    assert last.split(maxsplit=4) == ["12.0", "7.0", "42%", "2", "layer toy, 4 s of CPU outside its tests"]


def test_more_processor_than_clock_is_no_waiting() -> None:
    assert Spent(1.0, 1.7).waiting == 0.0
    assert Spent().waiting == 0.0
