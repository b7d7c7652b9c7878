"""The training tests with the lowest version of every dependency that pyproject.toml admits.

    python tests/versions/lowest.py

What constraints-lowest.txt names is installed once into `~/.cache/holdfast/lowest-HASH`: 5 GB, named after the
file's content and the Python. The end is pytest's closing line and its exit status.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "servers"))

from debian_packages import cache_folder, locked
from environments import LOWEST, TOOLS, bounds, lay_over, make, pythons, run_tests
from training_tests import TESTS

# Before 2.13 torch keeps about two descriptors of each rank for every round that is entered in the same process.
NOT_BEFORE_2_13 = "tests/integration/trainer/test_reentry.py::test_thirty_rounds_leave_nothing_behind"


def installed(python: Path, version: str) -> Path:
    """The environment, made where it is not there. Raises CalledProcessError."""
    cache = cache_folder()
    name = hashlib.sha256(LOWEST.read_bytes() + version.encode()).hexdigest()[:12]
    folder = cache / f"lowest-{name}"
    stamp = folder / "installed"
    with locked("lowest.lock"):  # two checkouts may want it at once
        if not stamp.exists():
            print(f"installing the lowest versions into {folder}: 3 GB to download, some minutes", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            make(folder, python, (*bounds(), *TOOLS), LOWEST)
            stamp.touch()
    return folder


def main() -> int:
    """Pytest's exit status."""
    found = pythons()
    if not found:
        print("there is no Python that Holdfast admits: install python3.11 or newer", file=sys.stderr)
        return 2
    version, python = next(iter(found.items()))
    try:
        over = lay_over(installed(python, version), "lowest")
    except subprocess.CalledProcessError as error:
        print(f"the lowest versions could not be installed: {error}", file=sys.stderr)
        return 2
    status, _ = run_tests(over, "lowest", (*TESTS, "--deselect", NOT_BEFORE_2_13))
    return status


if __name__ == "__main__":
    sys.exit(main())
