"""A judge of manifests that nobody here wrote: checkov, in an environment of its own outside the checkout.

    python tests/judge/judge.py      gets it before anybody needs it

Its many dependencies have nothing to do with ours and stay apart from them. It is asked for what it knows itself:
nothing is fetched while it judges.
Source: https://www.checkov.io/5.Policy%20Index/kubernetes.html (what each check wants, and why)
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "servers"))

from debian_packages import cache_folder  # noqa: E402  from the folder that is on the path only now

VERSION = "3.3.30"
INSTALL_S_MAX = 3600.0  # half a minute on a quiet machine


class JudgeMissing(RuntimeError):
    """It could not be installed, or did not judge. The text ends with what was said last."""


@dataclass(frozen=True, order=True)
class Finding:
    """What one check says of one object, `Kind/name`. `wants` is the check's own sentence."""

    check: str
    object: str
    wants: str


def judge() -> Path:
    """The Python that has it; installed now where it is not there yet. Raises JudgeMissing."""
    folder = cache_folder() / f"checkov-{VERSION}"
    python = folder / "bin" / "python"
    if python.exists():
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
        made = Path(unfinished) / "made"
        _run(sys.executable, "-m", "venv", made)
        pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _run(made / "bin" / "python", *pip, f"checkov=={VERSION}")
        if not folder.exists():  # by another run meanwhile
            shutil.move(made, folder)
    return python


def findings(manifests: Path) -> list[Finding]:
    """What it finds in a file of Kubernetes manifests. Raises JudgeMissing."""
    flags = (
        "--framework",
        "kubernetes",
        "--output",
        "json",
        "--compact",
        "--quiet",
        "--skip-download",
        "--soft-fail",
    )
    said = _run(judge(), "-m", "checkov.main", "--file", manifests, *flags)
    results = json.loads(said)
    summary = results["summary"]
    if summary["parsing_errors"] or not summary["passed"]:
        raise JudgeMissing(f"it did not understand {manifests}: {summary}")
    return sorted(_findings(results["results"]["failed_checks"]))


def _findings(failed: list[dict[str, str]]) -> Iterator[Finding]:
    for each in failed:
        kind, _, name = each["resource"].split(".", 2)
        yield Finding(each["check_id"], f"{kind}/{name}", each["check_name"])


def _run(*command: str | Path) -> str:
    ended = subprocess.run(
        [str(each) for each in command], capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False
    )
    if ended.returncode != 0:
        words = " ".join(map(str, command))
        raise JudgeMissing(f"{words} ended with {ended.returncode}: {ended.stderr[-2000:]}")
    return ended.stdout


if __name__ == "__main__":
    sys.stdout.write(f"{judge()}\n")
