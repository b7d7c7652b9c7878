"""Builds the sdist and the wheel of Holdfast, the same bytes from the same commit.

    python release/distributions.py [--into dist]

The wheel is built from the unpacked sdist, so that what whoever builds from source gets is what was tested. Every
time in the archives is that of the last commit, or SOURCE_DATE_EPOCH where the environment says one.
Source: https://reproducible-builds.org/docs/source-date-epoch/
"""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INTO = ROOT / "dist"
BUILDS_WITHIN_S = 600.0
WITHOUT_GIT = 1_577_836_800  # 2020-01-01: a tree that no commit dates; a zip archive has no time before 1980


class BuildFailed(RuntimeError):
    """The builder gave up. The text ends with what it said last."""


@dataclass(frozen=True, slots=True)
class Distributions:
    sdist: Path
    wheel: Path


def version(root: Path = ROOT) -> str:
    """What pyproject.toml says: the one place that a version is written by hand with the chart."""
    stated = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    assert isinstance(stated, str)
    return stated


def commit_time(root: Path = ROOT) -> int:
    """Seconds since 1970 of SOURCE_DATE_EPOCH, else of the last commit, else of a day long ago."""
    stated = os.environ.get("SOURCE_DATE_EPOCH", "")
    if stated:
        return int(stated)
    asked = subprocess.run(
        ["git", "-C", root, "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False
    )
    return int(asked.stdout) if asked.returncode == 0 and asked.stdout.strip() else WITHOUT_GIT


def build(into: Path, root: Path = ROOT) -> Distributions:
    """Both in `into`, which is made; what is there under the same names is replaced. Raises BuildFailed."""
    into.mkdir(parents=True, exist_ok=True)
    into = into.resolve()
    epoch = commit_time(root)
    with tempfile.TemporaryDirectory(prefix="holdfast-sdist-") as scratch:
        built, unpacked = Path(scratch) / "built", Path(scratch) / "unpacked"
        sdist = _hatchling("sdist", root, built, epoch)
        with tarfile.open(sdist) as archive:
            archive.extractall(unpacked, filter="data")
        (source,) = unpacked.iterdir()
        wheel = _hatchling("wheel", source, built, epoch)
        return Distributions(_moved(sdist, into), _moved(wheel, into))


def _moved(file: Path, into: Path) -> Path:
    """Under an unfinished name, for `into` may be another file system: whole or not there."""
    unfinished = into / f".{file.name}.new"
    unfinished.write_bytes(file.read_bytes())
    return unfinished.rename(into / file.name)


def _hatchling(kind: str, source: Path, into: Path, epoch: int) -> Path:
    """One archive. hatchling is called as a program: as a library it keeps what it read of another tree."""
    ended = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", into],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
        capture_output=True,
        text=True,
        timeout=BUILDS_WITHIN_S,
        check=False,
    )
    if ended.returncode != 0:
        raise BuildFailed(f"the {kind} was not built from {source}:\n{(ended.stdout + ended.stderr)[-3000:]}")
    suffix = ".whl" if kind == "wheel" else ".tar.gz"
    (made,) = (path for path in into.iterdir() if path.name.endswith(suffix))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the sdist and the wheel.")
    parser.add_argument("--into", type=Path, default=INTO, help="folder (default: dist)")
    built = build(parser.parse_args().into)
    for file in (built.sdist, built.wheel):
        print(f"{file}  {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
