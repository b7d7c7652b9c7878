"""What is kept beside the framework's checkpoints: how many samples a step of this life of the job has, and which
life of a job they belong to.
"""

import contextlib
import json
from pathlib import Path
from typing import Final

from holdfast.api.errors import Fenced

LIFE_NAME: Final = ".holdfast-life.json"
OWNER_NAME: Final = ".holdfast-owner"


def batch_of_life(directory: Path, *, owner: str, said: int) -> int:
    """The global batch in samples with which the life `owner` of the job began.

    Asked for the first time in that life, it is `said`, and is written down. Without a name of the life (no
    watchdog) it is always `said`. Raises OSError when it cannot be written down.
    """
    if not owner:
        return said
    path = directory / LIFE_NAME
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # nothing there, or of no use
        life = json.loads(path.read_bytes())
        if life["owner"] == owner:
            return int(life["global_batch"])
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps({"owner": owner, "global_batch": said}))
    unfinished.rename(path)
    return said


def take_over(directory: Path, *, owner: str, has_saved: bool) -> None:
    """The checkpoints in `directory` are of the life `owner` from now on; where it has no name, nothing changes.

    Raises Fenced when this life `has_saved` here and another one has taken over since; OSError.
    """
    if has_saved:
        check_owner(directory, owner=owner)
    if not owner or _owner_of(directory) == owner:
        return
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = directory / f"{OWNER_NAME}.unfinished"
    unfinished.write_text(owner)
    unfinished.rename(directory / OWNER_NAME)


def check_owner(directory: Path, *, owner: str) -> None:
    """Raises Fenced when another life has taken over the checkpoints in `directory`."""
    if owner and (now := _owner_of(directory)) not in ("", owner):
        raise Fenced(
            f"{directory} was taken over by another job, or by a later life of this one (it is {now}, and this is"
            f" {owner}): two that save in one place destroy each other's checkpoints; give each its own directory"
        )


def _owner_of(directory: Path) -> str:
    try:
        return (directory / OWNER_NAME).read_text()
    except FileNotFoundError:
        return ""
