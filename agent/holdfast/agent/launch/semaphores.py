"""Named semaphores of a worker and of all that it starts by multiprocessing.

Those of the start methods spawn and forkserver have a name in the file system, and somebody has to remove it. That
is the worker, or a process of multiprocessing's own which is killed with the worker. So each worker has names of
its own, and whoever reaps it removes what is left of them. In a worker that is a program of its own
multiprocessing names them as ever.

Source: CPython, Lib/multiprocessing/synchronize.py (SemLock._make_name); sem_overview(7), named semaphores are
files "sem.NAME" in /dev/shm
"""

import multiprocessing.process
import secrets
from pathlib import Path
from typing import Final

SHM: Final = Path("/dev/shm")
_PREFIX: Final = "mp-holdfast-"


def new_token() -> str:
    """What tells the names of one worker from those of all others, also in other process namespaces."""
    return secrets.token_hex(6)


def name_by(token: str) -> None:
    """Semaphores that this process makes from now on, and its children do, are named by `token`."""
    settings = vars(multiprocessing.process.current_process()).get("_config", {})  # children get a copy
    settings["semprefix"] = f"/{_PREFIX}{token}"


def remove(token: str, folder: Path = SHM) -> None:
    """The worker is gone, with all that it started: remove the names that are left."""
    for left in folder.glob(f"sem.{_PREFIX}{token}-*"):
        left.unlink(missing_ok=True)
