"""Which torch on which Python Holdfast works with: the demo and the training tests, on each.

    make bench NAME=versions                              lowest, pinned and newest torch on every Python there is
    make bench NAME=versions ARGS="--torch 2.16.0"        a new release, on every Python
    make bench NAME=versions ARGS="--cells 2.15.0/3.11"   these alone; the others are named as not run
    make bench NAME=versions ARGS="--names"               which private names the torch of .venv has, and no tests

A cell is an environment of 5 GB, one at a time, deleted when it is done. The lowest torch comes with the lowest of
what else Holdfast depends on, the others with what constraints.txt pins. A cell that cannot be installed is one
not run, with the reason. The tables are those of docs/versions.md.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from figure import BUILD, Figure, Goal, measured, publish, unmeasured

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "versions"))

import environments  # noqa: E402

PURPOSES: Final = (
    "holdfast.trainer.torchcaches",
    "holdfast.trainer.torchgroups",
    "holdfast.trainer.torchtensors",
    "holdfast.checkpoint.capture.torchstate",
    "holdfast.checkpoint.format.archive",
    "holdfast.agent.selftest.arithmetic",
)
_NAMES: Final = """
import importlib, json, sys
rows = []
for module in sys.argv[1:]:
    try:
        names = importlib.import_module(module).NAMES
    except Exception as error:  # it imports a name that this torch lacks
        rows.append((module, f"{type(error).__name__}: {error}", "it cannot be imported", False))
    else:
        rows += [(module, str(each), each.without, each.is_there) for each in names]
print(json.dumps(rows))
"""
_COUNT: Final = re.compile(r"(\d+) (passed|failed|error)")
_DEMO_WITHIN_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One torch on one Python, and what came of it; `reason` is why it was not run, and is empty once it was."""

    torch: str
    python: str
    reason: str = "not asked for"
    lacking: tuple[str, ...] = ()
    demo: str = ""
    passed: int = 0
    failed: int = 0
    minutes: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.torch}/{self.python}"

    def row(self) -> str:
        """Of the table."""
        if self.reason:
            return f"| {self.torch} | {self.python} | not run: {self.reason} | | | |"
        tests = f"{self.passed} passed" + (f", **{self.failed} failed**" if self.failed else "")
        lacking = ", ".join(self.lacking) or "none"
        return f"| {self.torch} | {self.python} | {self.demo} | {tests} | {lacking} | {self.minutes:.0f} |"

    def figure(self) -> Figure:
        """The share of what it ran that passed."""
        said = f"torch {self.torch} on Python {self.python}: demo and training tests that pass"
        if self.reason:
            return unmeasured(said, unit="tests", target=1.0, reason=self.reason, goal=Goal.AT_LEAST)
        ran = self.passed + self.failed + 1  # the demo
        good = self.passed + (self.demo == "passed")
        return measured(said, ours=[good], other=[ran], unit="tests", target=1.0, goal=Goal.AT_LEAST)


def releases() -> tuple[str, ...]:
    """The lowest, the pinned and the newest torch. Raises CalledProcessError without the index, which knows it."""
    (lowest,) = environments.versions_in(environments.LOWEST)["torch"]
    (pinned,) = environments.versions_in(environments.PINNED)["torch"]
    command = (sys.executable, "-m", "pip", "index", "versions", "torch", "--disable-pip-version-check")
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return tuple(dict.fromkeys((lowest, pinned, told.partition("(")[2].partition(")")[0])))


def private_names(python: Path) -> list[tuple[str, str, str, bool]]:
    """Of the torch there: the module that uses a name, the name, what happens without, whether it is there."""
    command = (str(python), "-c", _NAMES, *PURPOSES)
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environments.environment())
    return [tuple(each) for each in json.loads(done.stdout)]


def _demo(python: Path) -> str:
    with tempfile.TemporaryDirectory(prefix="holdfast-versions-") as folder:
        command = (str(python.parent / "holdfast"), "demo")
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environments.environment(),
                timeout=_DEMO_WITHIN_S,
                stdout=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return f"not over after {_DEMO_WITHIN_S:.0f} s"
        return "passed" if done.returncode == 0 else f"ended with {done.returncode}"


def _constraints(torch: str, folder: Path) -> Path:
    """What else is there: the lowest beside the lowest torch, what is pinned beside any other."""
    if [torch] == list(environments.versions_in(environments.LOWEST)["torch"]):
        return environments.LOWEST
    return environments.constraints_with(f"=={torch}", folder)


def tried(cell: Cell, python: Path) -> Cell:
    """`cell`, once it was run."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-versions-") as scratch:
        large = Path(scratch) / "environment"
        asked = (*environments.bounds(), *environments.TOOLS)
        try:
            environments.make(large, python, asked, _constraints(cell.torch, Path(scratch)))
            over = environments.lay_over(large, "cell")
            names = private_names(over)
        except subprocess.CalledProcessError as error:
            return replace(cell, reason=f"it could not be installed ({' '.join(error.cmd[1:5])} ...)")
        demo = _demo(over)
        _, closing = environments.run_tests(over, "versions")
    count = {word: int(number) for number, word in _COUNT.findall(closing)}
    return replace(
        cell,
        reason="" if count else f"the tests did not run: {closing}",
        lacking=tuple(name for _, name, _, is_there in names if not is_there),
        demo=demo,
        passed=count.get("passed", 0),
        failed=count.get("failed", 0) + count.get("error", 0),
        minutes=(time.monotonic() - began) / 60,
    )


def names_table(rows: Sequence[tuple[str, str, str, bool]]) -> Iterator[str]:
    """Every private name of torch that is used, by purpose."""
    yield "| used by | name | there | without it |"
    yield "|---|---|---|---|"
    for module, name, without, is_there in rows:
        yield f"| {module.removeprefix('holdfast.')} | `{name}` | {'yes' if is_there else '**no**'} | {without} |"


def table(cells: Sequence[Cell]) -> Iterator[str]:
    """Every cell, also those that were not run."""
    today = time.strftime("%Y-%m-%d", time.gmtime())
    yield f"On {platform.system()} {platform.machine()}, {today}, commit {_commit()}:"
    yield ""
    yield "| torch | Python | demo | training tests | private names lacking | minutes |"
    yield "|---|---|---|---|---|---|"
    yield from (each.row() for each in cells)


def _commit() -> str:
    done = subprocess.run(("git", "rev-parse", "--short=8", "HEAD"), cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", nargs="+", help="these releases")
    parser.add_argument("--python", nargs="+", help="these versions, such as 3.12")
    parser.add_argument("--cells", nargs="+", metavar="TORCH/PYTHON", help="run these of the table alone")
    parser.add_argument("--names", action="store_true", help="only the private names, of the torch of .venv")
    asked = parser.parse_args()
    if asked.names:
        print("\n".join(names_table(private_names(Path(sys.executable)))))
        return
    there = environments.pythons()
    cells = [Cell(torch, python) for torch in asked.torch or releases() for python in asked.python or there]
    if unknown := set(asked.cells or ()) - {each.name for each in cells}:
        parser.error(
            f"--cells: {' '.join(sorted(unknown))} is not in the table: {' '.join(c.name for c in cells)}"
        )
    for place, cell in enumerate(cells):
        if cell.python not in there:
            cells[place] = replace(cell, reason="there is no such Python on this machine")
        elif asked.cells is None or cell.name in asked.cells:
            print(f"torch {cell.torch} on Python {cell.python}", flush=True)
            cells[place] = tried(cell, there[cell.python])
            print(cells[place].row(), flush=True)
    lines = [*table(cells), "", *names_table(private_names(Path(sys.executable)))]
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "versions.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    publish("versions", [each.figure() for each in cells])


if __name__ == "__main__":
    main()
