"""Which processes descend from one, read from the kernel."""

from collections import defaultdict
from pathlib import Path


def descendants(root: int) -> list[int]:
    """Children, their children and so on, nearest first. Processes that end meanwhile are left out."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            children[parent].append(int(entry.name))
    found: list[int] = []
    frontier = [root]
    while frontier:
        frontier = [child for pid in frontier for child in children[pid]]
        found += frontier
    return found


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that has ended and is not reaped yet does not run."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


def _parent(entry: Path) -> int | None:
    try:
        text = (entry / "stat").read_text()
    except OSError:
        return None
    # The command's name stands in brackets and may hold anything, so fields count from the last bracket.
    return int(text.rpartition(")")[2].split()[1])
