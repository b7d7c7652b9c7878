"""The sdist and the wheel: everything that runs is in them, and they are the same each time."""

import hashlib
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import distributions
import pytest
from distributions import Distributions
from trove_classifiers import classifiers

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
EXAMPLE = "holdfast/cli/examples/bytes"


def files_under(*folders: str) -> set[str]:
    """Relative to the repository, without what Python leaves behind."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    return {str(path.relative_to(ROOT)) for path in found if path.is_file() and "__pycache__" not in path.parts}


def in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_every_file_of_every_part_is_in_the_wheel_and_the_example_too(built: Distributions) -> None:
    parts = {name.partition("/")[2] for name in files_under(*PACKAGES)}
    example = {f"{EXAMPLE}/{Path(name).name}" for name in files_under("examples/bytes")}
    assert in_wheel(built.wheel) == parts | example
    assert {f"{EXAMPLE}/job.yaml", "holdfast/console/static/index.html"} <= in_wheel(built.wheel)
    assert {f"{Path(each).as_posix().partition('/')[2]}" for each in PACKAGES} == {"holdfast"}
    typed = {name.split("/")[1] for name in in_wheel(built.wheel) if name.endswith("/py.typed")}
    assert typed == {each.split("/")[0] for each in PACKAGES}, "a part without py.typed has no types for its users"


def test_the_sdist_builds_the_wheel_that_the_tree_builds(built: Distributions, tmp_path: Path) -> None:
    epoch = distributions.commit_time()
    from_tree = distributions._hatchling("wheel", ROOT, tmp_path, epoch)
    assert hashlib.sha256(from_tree.read_bytes()).digest() == hashlib.sha256(built.wheel.read_bytes()).digest()
    with tarfile.open(built.sdist) as archive:
        names = {each.name.partition("/")[2] for each in archive}
        assert {each.mtime for each in archive} == {epoch}, "its times would differ at each build"
    assert {"PKG-INFO", "LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "constraints.txt"} <= names
    assert "docs/guide.md" in names
    assert not {name for name in names if name.startswith(("tests/", "bench/", "helm/", ".ci"))}


def test_what_is_said_of_it_is_whole_and_not_made_up(built: Distributions) -> None:
    said = metadata(built.wheel)
    assert (said["Name"], said["Version"]) == ("holdfast", PROJECT["project"]["version"])
    assert said["License-Expression"] == "Apache-2.0"
    assert said["License-File"] == "LICENSE"
    assert said["Description-Content-Type"] == "text/markdown"
    assert said.get_payload() == (ROOT / "README.md").read_text()
    assert said["Requires-Python"] == ">=3.11"
    assert set(said.get_all("Classifier", [])) <= classifiers
    assert said.get_all("Project-URL", []) == [], "an address belongs here once there is one"
    assert "local" in said.get_all("Provides-Extra", [])


def test_a_build_that_fails_says_what_the_builder_said(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "holdfast"\n')
    with pytest.raises(distributions.BuildFailed, match=r"(?s)the wheel was not built from .*version"):
        distributions._hatchling("wheel", tmp_path, tmp_path / "out", 0)


def test_the_time_is_the_commits_or_what_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert distributions.commit_time(tmp_path) == distributions.WITHOUT_GIT
    commit = ("git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "a")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    dated = {**os.environ, "GIT_COMMITTER_DATE": "1600000000 +0000"}
    subprocess.run([*commit, "--allow-empty"], check=True, env=dated)
    assert distributions.commit_time(tmp_path) == 1_600_000_000
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert distributions.commit_time(ROOT) == 1_700_000_000


def test_the_script_says_what_it_made(built: Distributions) -> None:
    command = [sys.executable, ROOT / "release" / "distributions.py", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    assert "--into" in said
    assert built.wheel.name == f"holdfast-{distributions.version()}-py3-none-any.whl"
