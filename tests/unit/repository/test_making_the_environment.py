"""`make demo` on a machine where something is missing, or where an earlier attempt ended early: a Python that is a
script stands in for the real one, and no package is installed.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[3] / "Makefile"

# Its file `fails` names what fails: of what it is asked, the words that each case begins with.
PYTHON = """#!/bin/sh
here={here}
echo "$*" >> $here/asked
fails=$(cat $here/fails 2> /dev/null)
case "$*" in
  "-c import sys; print"*) echo python3.11-venv;;
  "-c import sys"*) exit 0;;
  "-c import ensurepip"*) [ "$fails" != ensurepip ] || {{ echo "No module named 'ensurepip'" >&2; exit 1; }};;
  "-m venv "*)
    mkdir -p "$3/bin"; cp "$0" "$3/bin/python"
    [ "$fails" != venv ] || exit 1
    touch "$3/has-pip";;
  "-m pip --version") [ -e "$(dirname "$0")/../has-pip" ];;
  "-m pip install"*) [ "$fails" != download ] || exit 1;;
esac
"""


class Machine:
    """A checkout with nothing installed, and `python` on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.venv = folder / ".venv"
        self.python = folder / "python"
        self.python.write_text(PYTHON.format(here=folder))
        self.python.chmod(0o755)
        shutil.copy(MAKEFILE, folder / "Makefile")
        for name in ("pyproject.toml", "constraints.txt"):
            (folder / name).touch()

    def make(self, *, fails: str = "") -> subprocess.CompletedProcess[str]:
        """Install what a run needs; `fails` is what goes wrong."""
        (self.folder / "fails").write_text(fails)
        (self.folder / "asked").write_text("")
        command = ("make", "--no-print-directory", f"PYTHON={self.python}", ".venv/.installed-for-a-run")
        # Whoever runs the tests by make: this one is none of its own.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)

    @property
    def asked(self) -> list[str]:
        """What was asked of any Python since `make` was called last."""
        return (self.folder / "asked").read_text().splitlines()

    @property
    def made(self) -> int:
        """How often the environment was."""
        return sum(each.startswith("-m venv") for each in self.asked)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_python_without_venv_is_told_by_the_one_package_that_brings_it(machine: Machine) -> None:
    result = machine.make(fails="ensurepip")
    assert result.returncode == 2
    assert "apt-get install python3.11-venv" in result.stdout
    assert not machine.venv.exists()
    assert machine.make().returncode == 0


def test_an_environment_that_could_not_be_made_leaves_nothing(machine: Machine) -> None:
    assert machine.make(fails="venv").returncode == 2
    assert not machine.venv.exists()
    assert machine.make().returncode == 0


def test_a_download_that_failed_is_repeated_in_the_same_environment(machine: Machine) -> None:
    assert machine.make(fails="download").returncode == 2
    assert machine.made == 1
    assert not (machine.venv / ".installed-for-a-run").exists()
    assert machine.make().returncode == 0
    assert machine.made == 0
    assert machine.make().stdout == "make: '.venv/.installed-for-a-run' is up to date.\n"


def test_what_an_attempt_that_was_killed_left_is_replaced(machine: Machine) -> None:
    (machine.venv / "bin").mkdir(parents=True)
    shutil.copy(machine.python, machine.venv / "bin" / "python")  # but no pip
    (machine.venv / "half").touch()
    assert machine.make().returncode == 0
    assert machine.made == 1
    assert not (machine.venv / "half").exists()


def test_a_long_download_is_announced_and_seen(machine: Machine) -> None:
    result = machine.make()
    assert "5 GB on the disk" in result.stdout
    (install,) = (each for each in machine.asked if each.startswith("-m pip install"))
    assert "quiet" not in install
    assert "-q" not in install.split()
