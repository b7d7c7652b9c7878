"""One control group per node, below every cgroup-v1 controller of this machine."""

import time
from pathlib import Path

from patience import patient

ROOT = Path("/sys/fs/cgroup")
PREFIX = "holdfast-test-"  # of no test beside these: all of that name are removed
EMPTY_S_MAX = patient(10.0)


class CgroupsMissing(RuntimeError):
    """This machine has no cgroup-v1 controllers."""


def controllers() -> list[Path]:
    """Raises CgroupsMissing: kubelet 1.20 with runc 1.1 was only ever tried on version 1."""
    found = [each for each in ROOT.iterdir() if each.is_dir() and (each / "cgroup.procs").exists()]
    # The kubelet looks for its group below the named hierarchy "systemd" too.
    named = [each for each in found if each.name != "unified" and not each.is_symlink()]
    if not (ROOT / "memory").is_dir() or not named:
        raise CgroupsMissing(
            f"{ROOT} has no cgroup-v1 controllers (it has {sorted(each.name for each in found)}); the test "
            "cluster needs them: boot with systemd.unified_cgroup_hierarchy=0"
        )
    return named


def make(node: str) -> str:
    """The node's group, as a path below each controller."""
    group = PREFIX + node
    for controller in controllers():
        folder = controller / group
        folder.mkdir(exist_ok=True)
        if controller.name == "cpuset":  # a new cpuset is empty, and nothing can be put into it
            for file in ("cpuset.cpus", "cpuset.mems"):
                (folder / file).write_text((controller / file).read_text())
    return group


def remove_all() -> None:
    """Remove the groups of every node; their processes must be dead already."""
    for controller in controllers():
        for folder in controller.glob(f"{PREFIX}*"):
            _remove(folder)


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
