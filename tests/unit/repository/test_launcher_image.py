"""In a user's pod our code runs on the user's Python, with what the launcher image brings for it and no more."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
USERS = {"torch", "numpy"}  # The user's image has them.


def brought() -> dict[str, set[str]]:
    """The distributions in each part of the launcher image."""
    (parts,) = re.findall(r'for part in ("shared .*"); do', (ROOT / "images" / "Dockerfile").read_text())
    split = [part.split() for part in re.findall(r'"([^"]+)"', parts)]
    return {name: set(needs) for name, *needs in split}


def unavailable(available: set[str]) -> list[str]:
    """The modules of all that Holdfast can depend on, but for those of `available`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [need for needs in project["optional-dependencies"].values() for need in needs]
    names = {re.split(r"[\[<>=]", need)[0].lower() for need in (*project["dependencies"], *extras)} - {"holdfast"}
    modules = importlib.metadata.packages_distributions().items()
    return sorted(module for module, owners in modules if {each.lower() for each in owners} & names - available)


SHARED = brought()["shared"] | USERS


@pytest.mark.parametrize(
    ("modules", "available"),
    [
        (
            "holdfast.checkpoint.memory.__main__, holdfast.agent.launch.warm_parent, holdfast.trainer, "
            "holdfast.checkpoint, holdfast.agent.selftest.__main__, holdfast.agent.selftest.selftest",
            SHARED,
        ),
        ("holdfast.agent.launch.command", SHARED - USERS | brought()["launcher"]),
    ],
)
def test_what_runs_in_a_pod_needs_no_more_than_is_brought(modules: str, available: set[str]) -> None:
    blocked = unavailable(available)
    assert ("click" in blocked) == ("click" not in available)
    script = f"import sys; sys.modules.update(dict.fromkeys({blocked!r})); import {modules}"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
