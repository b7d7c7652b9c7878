"""torch for the pods of the test cluster: that of the tests' own environment, mounted from this machine.

As an image it is 5 GB that are packed, imported and unpacked, which takes minutes and three times the room. All
nodes are on one machine and see its folders, so a volume of kind hostPath will do. The folder has hard links to
the installed files of torch and of what it needs, and to nothing else: a user's image has no part of Holdfast.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "tests" / "torch"  # of the environment's file system, as a rule: it takes no room
WHERE_IMAGES_LOOK = "/opt/site"  # images/Dockerfile, target example-script
NAMES = ("torch", "numpy")


def mounted_torch() -> Path:
    """The folder, made now unless it is there as the installed versions want it."""
    wanted = sorted(needed(NAMES), key=lambda each: each.name)
    made_of = "\n".join(f"{each.name}=={each.version}" for each in wanted)
    folder = FOLDER / hashlib.sha256(made_of.encode()).hexdigest()[:12]
    if not folder.exists():
        shutil.rmtree(FOLDER, ignore_errors=True)
        unfinished = folder.with_suffix(".new")
        for each in wanted:
            _link(each, unfinished)
        unfinished.rename(folder)
    return folder


def needed(names: Sequence[str]) -> list[Distribution]:
    """These distributions and all that they need on this machine, each once. Raises PackageNotFoundError."""
    seen: set[tuple[str, str]] = set()
    found: dict[str, Distribution] = {}
    left = [Requirement(name) for name in names]
    while left:
        wanted = left.pop()
        for extra in ("", *wanted.extras):
            key = (canonicalize_name(wanted.name), extra)
            if key not in seen:
                seen.add(key)
                found[key[0]] = distribution(wanted.name)
                left += _required(found[key[0]], extra)
    return list(found.values())


def with_torch(manifest: dict[str, Any]) -> dict[str, Any]:
    """This TrainingJob, its trainer with torch where its image looks for it."""
    made: dict[str, Any] = json.loads(json.dumps(manifest))
    pod = made["spec"]["template"]["spec"]
    mount = {"name": "torch", "mountPath": WHERE_IMAGES_LOOK, "readOnly": True}
    pod.setdefault("volumes", []).append({"name": "torch", "hostPath": {"path": str(mounted_torch())}})
    pod["containers"][0].setdefault("volumeMounts", []).append(mount)
    return made


def _required(distribution: Distribution, extra: str) -> Iterator[Requirement]:
    for line in distribution.requires or ():
        each = Requirement(line)
        if each.marker is None:
            if not extra:
                yield each
        elif each.marker.evaluate({"extra": extra}):
            yield each


def _link(distribution: Distribution, folder: Path) -> None:
    for file in distribution.files or ():
        if ".." in file.parts:  # a program, beside the environment's others
            continue
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        source = Path(str(file.locate()))
        if source.exists() and not target.exists():  # what Python compiled may be gone
            try:
                os.link(source, target)
            except OSError:  # another file system, or one without links
                shutil.copy2(source, target)
