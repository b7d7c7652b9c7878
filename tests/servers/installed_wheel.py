"""Holdfast as pip installs it from its wheel, in an environment that knows no checkout.

What Holdfast depends on is lent from this environment, package by package, and nothing of Holdfast itself: neither
the path file by which an editable installation leads into the checkout, nor the files that it puts beside it. So
what the wheel lacks is missing.
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
    (packages / "lent.pth").write_text(f"{_lent(folder / 'lent')}\n")
    found = _run(python, "-c", "import holdfast; print(*holdfast.__path__, sep='\\n')").splitlines()
    assert found == [str(packages / "holdfast")], f"it leads elsewhere: {found}"
    return python.parent


def _lent(folder: Path) -> Path:
    """A folder with a link to each package of this environment that is not of Holdfast."""
    folder.mkdir()
    for place in [Path(path) for path in sys.path if Path(path).name == "site-packages"]:
        for each in place.iterdir():
            link = folder / each.name
            if each.suffix != ".pth" and not each.name.startswith("holdfast") and not link.exists():
                link.symlink_to(each)
    return folder


def _run(*command: str | Path) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patient(100.0), check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
