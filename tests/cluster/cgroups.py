"""One control group per node: of version 2 where this machine has it, else below every controller of version 1."""

import time
from pathlib import Path

from patience import patient

ROOT = Path("/sys/fs/cgroup")
PREFIX = "holdfast-test-"  # of no test beside these: all of that name are removed
EMPTY_S_MAX = patient(10.0)
# What a kubelet wants of version 2. Source: https://kubernetes.io/docs/concepts/architecture/cgroups/
WANTED = ("cpuset", "cpu", "memory", "pids")


class CgroupsMissing(RuntimeError):
    """This machine has no control groups that a node could use. The text says what it has."""


def hierarchies(root: Path = ROOT) -> list[Path]:
    """The folders in which a node needs a group of its name. Raises CgroupsMissing."""
    if (root / "cgroup.controllers").exists():
        has = (root / "cgroup.controllers").read_text().split()
        if missing := [each for each in WANTED if each not in has]:
            raise CgroupsMissing(f"{root} is of version 2 and has no {', '.join(missing)}; it has {has}")
        return [root]
    found = [each for each in root.iterdir() if each.is_dir() and (each / "cgroup.procs").exists()]
    # The kubelet looks for its group below the named hierarchy "systemd" too.
    named = [each for each in found if each.name != "unified" and not each.is_symlink()]
    if not (root / "memory").is_dir() or not named:
        raise CgroupsMissing(f"{root} has no controllers of version 1 or 2 (it has {sorted(map(str, found))})")
    return named


def make(node: str, root: Path = ROOT) -> str:
    """The node's group, as a path below each hierarchy. Raises CgroupsMissing."""
    group = PREFIX + node
    for hierarchy in hierarchies(root):
        if hierarchy == root:
            _hand_down(root)
        folder = hierarchy / group
        folder.mkdir(exist_ok=True)
        if hierarchy.name == "cpuset":  # a new cpuset of version 1 is empty, and nothing can be put into it
            for file in ("cpuset.cpus", "cpuset.mems"):
                (folder / file).write_text((hierarchy / file).read_text())
    return group


def remove_all() -> None:
    """Remove the groups of every node; their processes must be dead already."""
    for hierarchy in hierarchies():
        for folder in hierarchy.glob(f"{PREFIX}*"):
            _remove(folder)


def _hand_down(root: Path) -> None:
    """Let groups below use the controllers. Version 2 only does that where no process is in the group itself."""
    try:
        (root / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in WANTED))
    except OSError as error:
        raise CgroupsMissing(
            f"{root} does not hand its controllers down ({error.strerror}); processes in it: "
            f"{(root / 'cgroup.procs').read_text().split()[:5]}. Move them into a group below"
        ) from error


def _remove(folder: Path) -> None:
    for child in folder.iterdir():
        if child.is_dir():
            _remove(child)
    deadline = time.monotonic() + EMPTY_S_MAX
    while True:  # a killed process leaves its group a moment after it is gone
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{folder} still has {(folder / 'cgroup.procs').read_text().split()}"
                ) from error
            time.sleep(0.05)
        else:
            return
