"""Builds the images with images/build.sh and reads what is in them, with buildah or docker.

Each image carries its title, version and commit as labels of the image specification.
Source: https://github.com/opencontainers/image-spec/blob/main/annotations.md
"""

import json
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from distributions import ROOT

TARGETS = ("operator", "watchdog", "agent", "console", "launcher", "example-trainer")
# Of a file system, what a bill of materials is made from: patterns of whole paths.
READ = (
    "*.dist-info/METADATA",
    "*/static/vendor/*/README.md",
    "var/lib/dpkg/status",
    "etc/os-release",
    "usr/lib/os-release",
)


class BuilderMissing(RuntimeError):
    """Neither buildah nor docker is there."""


def builder() -> str:
    """As images/build.sh chooses. Raises BuilderMissing."""
    for name in ("buildah", "docker"):
        if shutil.which(name):
            return name
    raise BuilderMissing("neither buildah nor docker is on the path; install one (apt-get install buildah)")


def build(targets: Sequence[str], options: Sequence[str] = ()) -> list[str]:
    """The names of the images, `holdfast/operator:0.1.0`. `options` are of images/build.sh, with its own `--`.

    Raises CalledProcessError of subprocess; what the builder says goes to stderr as it comes.
    """
    split = options.index("--") if "--" in options else len(options)
    command = [str(ROOT / "images" / "build.sh"), *options[:split], *targets, *options[split:]]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [line.split()[0] for line in ended.stdout.splitlines()]


def described(image: str, by: str) -> Mapping[str, Any]:
    """The image's id and its labels: {"id": ..., "labels": {...}}."""
    if by == "buildah":
        said = json.loads(_said("buildah", "inspect", "--type", "image", image))
        return {"id": said["FromImageID"], "labels": said["Docker"]["config"].get("Labels") or {}}
    (said,) = json.loads(_said("docker", "image", "inspect", image))
    return {"id": said["Id"].removeprefix("sha256:"), "labels": said["Config"].get("Labels") or {}}


@contextmanager
def file_system(image: str, by: str) -> Iterator[Path]:
    """A folder with what a bill of materials reads of the image; gone afterwards, as is the container for it."""
    if by == "buildah":
        container = _said("buildah", "from", "--pull-never", image)
        try:
            yield Path(_said("buildah", "mount", container))
        finally:
            _said("buildah", "rm", container)
        return
    container = _said("docker", "create", image)
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-image-") as folder:
            _export(container, Path(folder))
            yield Path(folder)
    finally:
        _said("docker", "rm", container)


def _export(container: str, folder: Path) -> None:
    with subprocess.Popen(["docker", "export", container], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
            for entry in archive:
                if entry.isfile() and any(fnmatchcase(entry.name, each) for each in READ):
                    archive.extract(entry, folder, filter="data")
        while process.stdout.read(1 << 20):
            pass  # what pads the archive: a writer that is cut off there fails
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, "docker export")


def _said(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
