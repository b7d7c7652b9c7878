"""Environments with other versions of torch, of Python or of what Holdfast depends on than .venv has.

What is large (5 GB with torch) is made once, anywhere, and knows nothing of a checkout. On top of it lies a small
one in the checkout, in which its code is installed, so that checkouts share the large one. Only Python's own
library is used here, and the pip of .venv: Pythons without ensurepip, as Debian has them, are good enough.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from training_tests import TESTS

ROOT: Final = Path(__file__).parents[2]
PINNED: Final = ROOT / "constraints.txt"
LOWEST: Final = ROOT / "constraints-lowest.txt"
EXTRAS: Final = ("agent", "watchdog", "console", "torch", "demo", "objects", "transformers", "lightning")
"""Of Holdfast's, what is there where training runs. `operator` asks for newer versions of the same packages."""
TOOLS: Final = (
    *("editables", "hatchling", "hypothesis", "localbucket"),
    *("pytest", "pytest-asyncio", "pytest-rerunfailures", "pytest-timeout", "pytest-xdist"),
)
"""What tests need besides."""
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?>=([0-9][0-9.]*)")


def bounds() -> Mapping[str, str]:
    """The lowest version that pyproject.toml admits of each dependency of `EXTRAS`, by its name there."""
    found = (_REQUIREMENT.match(each) for each in _asked())
    return {match[1]: match[2] for match in found if match}


def admitted(package: str) -> str:
    """What pyproject.toml admits of a dependency of `EXTRAS`: ">=2.11,<2.16"."""
    return next(each.removeprefix(package) for each in _asked() if re.match(rf"{re.escape(package)}[<>=]", each))


def _asked() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(line for each in EXTRAS for line in optional[each])]


def versions_in(constraints: Path) -> Mapping[str, Sequence[str]]:
    """The versions that a file of constraints has of each package; several where they differ by Python."""
    found: dict[str, list[str]] = {}
    for line in constraints.read_text().splitlines():
        name, equals, version = line.partition("#")[0].partition(";")[0].partition("==")
        if equals:
            found.setdefault(name.strip().lower(), []).append(version.strip())
    return found


def constraints_with(torch: str, folder: Path) -> Path:
    """A file in `folder`: what is pinned of everything else, and this of torch ("==2.15.0")."""
    lines = PINNED.read_text().splitlines()
    file = folder / "constraints.txt"
    file.write_text("\n".join([*(each for each in lines if not each.startswith("torch==")), f"torch{torch}"]))
    return file


def pythons() -> Mapping[str, Path]:
    """The Pythons of this machine that Holdfast admits, by version ("3.12")."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = re.findall(r"Python :: (3\.\d+)'", str(project["classifiers"]))
    return {each: path for each in wanted if (path := next(_found(each), None)) is not None}


def _found(version: str) -> Iterator[Path]:
    candidates = [*sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))]
    if program := shutil.which(f"python{version}"):
        candidates.append(Path(program))
    for each in candidates:
        command = (str(each), "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])")
        if subprocess.run(command, capture_output=True, text=True).stdout.strip() == version:
            yield each


def make(folder: Path, python: Path, requirements: Sequence[str], constraints: Path) -> None:
    """The large one, in `folder`. Raises CalledProcessError; then nothing is left of it."""
    try:
        subprocess.run((str(python), "-m", "venv", "--without-pip", str(folder)), check=True)
        _pip(folder, "--no-compile", "-c", str(constraints), *requirements)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def lay_over(large: Path, name: str) -> Path:
    """The Python of the small one, `name`, with this checkout's code. Raises CalledProcessError."""
    folder = ROOT / "build" / "versions" / name
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run((str(large / "bin" / "python"), "-m", "venv", "--without-pip", str(folder)), check=True)
    (site,), (below,) = (list(each.glob("lib/python3.*/site-packages")) for each in (folder, large))
    (site / "below.pth").write_text(f"{below}\n")
    _pip(folder, "--no-deps", "--no-build-isolation", "-e", str(ROOT))
    return folder / "bin" / "python"


def _pip(folder: Path, *arguments: str) -> None:
    own = ROOT / ".venv" / "bin" / "python"
    pip = (
        str(own if own.exists() else sys.executable),
        "-m",
        "pip",
        "--python",
        str(folder / "bin" / "python"),
        "--disable-pip-version-check",
    )
    subprocess.run((*pip, "install", "--quiet", *arguments), check=True, stdout=sys.stderr)


def environment() -> dict[str, str]:
    """For programs in one of them: nothing of the environment that this one runs in."""
    inherited = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if name not in inherited}


def run_tests(python: Path, layer: str, tests: Sequence[str] = TESTS) -> tuple[int, str]:
    """Run them as a layer, of which none skips itself, shown as they go: pytest's exit status, and its last line,
    which counts them.
    """
    command = (str(python), "-m", "pytest", "--layer", layer, "-n", "2", "--dist", "loadfile", *tests)
    lines: list[str] = []
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            lines = [line.strip()] if line.strip() else lines
    return running.returncode, lines[0].strip("= ") if lines else "it said nothing"
