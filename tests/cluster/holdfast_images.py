"""Holdfast's own images as archives that a node can import, built here from images/Dockerfile without a registry.

An archive is named by a digest of all it is made from and kept outside the checkout: only what changed is built,
in half a minute for a change of the code and about three with nothing there at all.
"""

import hashlib
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import cluster_packages
from cluster_images import program_files, write_archive
from debian_packages import cache_folder, packaged_program
from parts import PARTS
from patience import patient

ROOT = Path(__file__).parents[2]
BASE_IMAGE = ROOT / "tests" / "cluster" / "base_image.sh"
BUILD_S_MAX = patient(900.0)
KEPT = 2  # archives of each image: this one and the one before
REGISTRY = "docker.io"  # what a name without a registry means to a node
REDIS_REPOSITORY, REDIS_TAG = "test.holdfast/redis", "7"
REDIS_SCRIPTS_USE = ("sh", "cat", "cut", "grep", "sed", "sha1sum", "sleep", "timeout")
CODE = ("pyproject.toml", *PARTS, "examples")
MADE_FROM: Mapping[str, Sequence[str]] = {
    "operator": CODE,
    "watchdog": CODE,
    "agent": CODE,
    "launcher": (*CODE, "images/launch", "images/install"),
    "example-script": ("examples/bytes/train.py",),
}
# The example's image is that without torch, which its pods mount (mounted_torch.py), under the example's name.
CALLED = {"example-script": "example-trainer"}
ALWAYS = ("images/Dockerfile", "images/requirements.py", "constraints.txt", "tests/cluster/base_image.sh")


class BuildFailed(RuntimeError):
    """An image could not be built. The text ends with what the builder said last."""


def holdfast_archives() -> list[Path]:
    """Archives of every image of Holdfast, and of Redis, all built now where they are not there already."""
    folder = cache_folder() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    return [*_built(folder), _redis(folder)]


def chart_values() -> dict[str, object]:
    """The chart's values for a cluster that has only these images and no storage."""
    redis = {"image": {"repository": REDIS_REPOSITORY, "tag": REDIS_TAG}, "persistence": {"enabled": False}}
    return {"redis": redis}


def image(name: str) -> str:
    """The name of an image as a manifest gives it: `holdfast/example-trainer:0.1.0`."""
    return f"holdfast/{name}:{_version()}"


def _built(folder: Path) -> list[Path]:
    wanted = {name: folder / f"{name}-{_digest((*ALWAYS, *MADE_FROM[name]))}.tar" for name in MADE_FROM}
    missing = [name for name, path in wanted.items() if not path.exists()]
    if missing:
        _run(BASE_IMAGE, "make")
        options = _run(BASE_IMAGE, "options").split()
        base = _run(BASE_IMAGE, "name").strip()
        _run(ROOT / "images" / "build.sh", "--builder", "buildah", "--base", base, *missing, "--", *options)
    for name in missing:
        _push(name, wanted[name])
        _forget_older(folder, name)
    return list(wanted.values())


def _push(name: str, path: Path) -> None:
    """From buildah's store to an archive that says the full name."""
    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    whole = f"{REGISTRY}/{image(CALLED.get(name, name))}"
    _run("buildah", "push", "--quiet", f"localhost/{image(name)}", f"docker-archive:{unfinished}:{whole}")
    unfinished.rename(path)


def _forget_older(folder: Path, name: str) -> None:
    by_age = sorted(folder.glob(f"{name}-????????????.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in by_age[KEPT:]:
        path.unlink()


def _redis(folder: Path) -> Path:
    """This machine's redis-server and a shell, as an image that the chart's Redis can be."""
    packaged_program("redis-server")
    parts = [program_files(name) for name in ("redis-server", "redis-cli", "busybox")]
    files = {inside: path for part in parts for inside, path in part.items()}
    contents = [Path(path).read_bytes() for _, path in sorted(files.items())]
    made_of = hashlib.sha256(b"".join((*contents, *map(str.encode, REDIS_SCRIPTS_USE)))).hexdigest()
    path = folder / f"redis-{made_of[:12]}.tar"
    if not path.exists():
        name = f"{REDIS_REPOSITORY}:{REDIS_TAG}"
        write_archive(path, name, files, ("redis-server",), links=REDIS_SCRIPTS_USE)
    return path


def _version() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project["version"]
    assert isinstance(version, str)
    return version


def _digest(names: Sequence[str]) -> str:
    """Of every file's path and content, what Python leaves behind left out."""
    whole = hashlib.sha256()
    for name in names:
        top = ROOT / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts:
                whole.update(f"{path.relative_to(ROOT)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:12]


def _run(*command: str | Path) -> str:
    """What it printed. Raises BuildFailed, also after BUILD_S_MAX: all that it started is ended then."""
    words = " ".join(map(str, command))
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "BUILDAH_ISOLATION": "chroot"},
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=BUILD_S_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise BuildFailed(
            f"{words} took more than {BUILD_S_MAX:.0f} s: {process.communicate()[1][-3000:]}"
        ) from None
    if process.returncode != 0:
        raise BuildFailed(f"{words} ended with {process.returncode}:\n{errors[-3000:]}")
    return output


if __name__ == "__main__":  # with tests/servers on PYTHONPATH
    cluster_packages.install()  # the Redis image is made of this machine's programs
    for archive in holdfast_archives():
        sys.stdout.write(f"{archive}\n")
