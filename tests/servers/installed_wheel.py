"""Holdfast as pip installs it from its wheel, in an environment that knows no checkout.

What Holdfast depends on is lent from this environment, each package by a link, without Holdfast itself: an
editable installation has files of its own here (the demo's example, its metadata), and they would stand in for
what the wheel lacks. Path files are not followed.
"""

import subprocess
import sys
import venv
from pathlib import Path

from patience import patient

ROOT = Path(__file__).parents[2]


def installed_wheel(folder: Path) -> Path:
    """The folder with the programs of a fresh environment in `folder`. Builds the wheel first."""
    built = folder / "dist"
    _run(sys.executable, ROOT / "release" / "distributions.py", "--into", built)
    (wheel,) = built.glob("*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check")
    _run(*pip, "install", "--no-deps", "--no-index", wheel)
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    lent = folder / "lent"
    lend(lent)
    (packages / "lent.pth").write_text(f"{lent}\n")
    assert holdfast_seen_by(python) == [str(packages / "holdfast"), "1 distribution"]
    return python.parent


def lend(into: Path) -> None:
    """Links to every package that is installed here; of two of one name the first, as Python has it."""
    into.mkdir()
    for place in (Path(path) for path in sys.path if Path(path).name == "site-packages"):
        for entry in sorted(place.iterdir()):
            is_ours = entry.name == "holdfast" or entry.name.startswith(("holdfast-", "_holdfast", "__editable__"))
            if not is_ours and entry.suffix != ".pth" and not (into / entry.name).is_symlink():
                (into / entry.name).symlink_to(entry)


def holdfast_seen_by(python: Path) -> list[str]:
    """The folders of the package, and how many distributions of that name there are."""
    count = "len([each for each in distributions() if each.metadata['Name'] == 'holdfast'])"
    script = f"import holdfast; print(*holdfast.__path__, str({count}) + ' distribution', sep='\\n')"
    return _run(python, "-c", f"from importlib.metadata import distributions; {script}").splitlines()


def _run(*command: str | Path) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patient(100.0), check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
