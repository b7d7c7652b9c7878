"""What this life of the job began with, kept beside the framework's checkpoints: how many samples a step has."""

import contextlib
import json
from pathlib import Path
from typing import Final

LIFE_NAME: Final = ".holdfast-life.json"


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
