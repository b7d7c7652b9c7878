"""Installs what was built as a user does, and runs it: wheel and sdist, each in an environment of its own.

    python release/check.py [--from dist] [--steps 100] [--skip-sdist]

An environment is a fresh one outside the checkout, with pip's own way to packages and nothing of this one's. In it

    pip install 'holdfast[local]'    from the file, within constraints.txt, so with torch: a large download
    pip check                        nothing asks for what is not there
    holdfast --help                  and every command's help
    holdfast demo                    four faults, each healed, in an empty folder

Ends with 1 at the first that fails, with what it said.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

import distributions
from distributions import INTO, ROOT

WITHIN_S = 1800.0
KEPT_OF_ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR")
STEPS_DEFAULT = 100
FAULTS_OF_THE_DEMO = 4


class CheckFailed(RuntimeError):
    """A command did not do what it should. The text says which, and ends with what it said last."""


def check(archive: Path, *, steps: int) -> str:
    """Raises CheckFailed. Returns the demo's table of what each fault cost."""
    with tempfile.TemporaryDirectory(prefix="holdfast-check-") as folder:
        home = Path(folder)
        venv.create(home / "env", with_pip=True)
        here = Environment(home / "env" / "bin", home / "empty")
        pip = ("python", "-m", "pip", "--quiet", "--disable-pip-version-check")
        here.run(*pip, "install", "-c", str(ROOT / "constraints.txt"), f"holdfast[local] @ {archive.as_uri()}")
        here.run(*pip, "check")
        origin = here.run("python", "-c", "import holdfast.cli; print(holdfast.cli.__file__)")
        if not origin.startswith(str(home)):
            raise CheckFailed(f"holdfast was imported from {origin.strip()}, not from what was installed")
        said = here.run("holdfast", "--help")
        for line in said.partition("Commands:")[2].splitlines():
            if line.startswith("  ") and not line.startswith("   "):
                here.run("holdfast", line.split()[0], "--help", may_lack_extra=True)
        table = here.run("holdfast", "demo", "--plain", "--steps", str(steps), "--no-console")
        if table.count("Recovered") != FAULTS_OF_THE_DEMO:
            raise CheckFailed(f"the demo did not heal {FAULTS_OF_THE_DEMO} faults:\n{table}")
        return table


class Environment:
    """Commands of one environment, in one empty folder, without this process's variables."""

    def __init__(self, programs: Path, folder: Path) -> None:
        folder.mkdir()
        self._programs, self._folder = programs, folder
        kept = {name: os.environ[name] for name in KEPT_OF_ENVIRONMENT if name in os.environ}
        ways = {
            name: said for name, said in os.environ.items() if name.startswith("PIP_") or "_proxy" in name.lower()
        }
        self._variables = {**kept, **ways, "PATH": f"{programs}{os.pathsep}{kept.get('PATH', os.defpath)}"}

    def run(self, program: str, *arguments: str, may_lack_extra: bool = False) -> str:
        """What it printed. Raises CheckFailed unless it ended with 0, or said which extra it lacks."""
        ended = subprocess.run(
            [self._programs / program, *arguments],
            cwd=self._folder,
            env=self._variables,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        lacks = may_lack_extra and "pip install 'holdfast[" in ended.stderr
        if ended.returncode != 0 and not lacks:
            words = " ".join((program, *arguments))
            raise CheckFailed(f"{words} ended with {ended.returncode}:\n{(ended.stdout + ended.stderr)[-4000:]}")
        return ended.stdout


def archives(folder: Path, *, has_sdist: bool) -> Sequence[Path]:
    """The wheel and the sdist there; built now where they are not."""
    stated = distributions.version()
    found = [folder / f"holdfast-{stated}-py3-none-any.whl", folder / f"holdfast-{stated}.tar.gz"]
    if not all(path.is_file() for path in found):
        distributions.build(folder)
    return [path.resolve() for path in (found if has_sdist else found[:1])]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Install the wheel and the sdist as a user does, and run the demo."
    )
    parser.add_argument("--from", dest="folder", type=Path, default=INTO, help="folder (default: dist)")
    parser.add_argument("--steps", type=int, default=STEPS_DEFAULT, help="of the demo")
    parser.add_argument("--skip-sdist", action="store_true")
    asked = parser.parse_args()
    for archive in archives(asked.folder, has_sdist=not asked.skip_sdist):
        begun = time.monotonic()
        try:
            table = check(archive, steps=asked.steps)
        except CheckFailed as error:
            sys.exit(f"{archive.name}: {error}")
        print(f"{archive.name}: installs, and heals {FAULTS_OF_THE_DEMO} faults; {time.monotonic() - begun:.0f} s")
        print(table)


if __name__ == "__main__":
    main()
