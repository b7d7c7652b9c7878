"""The folder of one member's snapshots, in the node's memory.

It outlives the launcher, whatever kills it: one that is started again for the same member with the same run
directory finds what is in it. A launcher that ends for good removes it. What nobody came back for is removed by
another launcher of the same user on the same node, `ABANDONED_S` after its own was last seen.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import time
from pathlib import Path
from typing import Final, Self

from holdfast.api.errors import Unavailable

ROOT: Final = Path("/dev/shm")
ABANDONED_S: Final = 900.0
TOUCH_EVERY_S: Final = 60.0
_PREFIX: Final = f"holdfast-{os.geteuid()}-"
_LOCK_NAME: Final = "launcher.lock"
_LOCK_PATIENCE_S: Final = 1.0  # a launcher that was killed is gone within milliseconds
_LOCK_PAUSE_S: Final = 0.02


def folder_of(root: Path, *, job: str, member: str, run_dir: Path) -> Path:
    """Where the member's snapshots lie. The same for a launcher that is started again."""
    identity = "\0".join((job, member, str(run_dir.resolve())))
    return root / f"{_PREFIX}{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def remove(path: Path) -> None:
    """Give the folder's memory back. What a process still maps goes with that process."""
    shutil.rmtree(path, ignore_errors=True)


class MemoryFolder:
    """This launcher's until `remove` or `leave`: it holds the lock in it."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def claim(cls, path: Path) -> Self:
        """Make it, or take over what a launcher that was killed has left. Raises Unavailable."""
        give_up = time.monotonic() + _LOCK_PATIENCE_S
        try:
            while True:
                path.mkdir(mode=0o700, exist_ok=True)
                if not _is_ours(path):
                    raise Unavailable(f"{path} is somebody else's")
                lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
                if _is_locked_by(lock, path):
                    os.utime(lock)
                    return cls(path, lock)
                os.close(lock)
                if time.monotonic() > give_up:
                    raise Unavailable(f"another launcher uses {path}")
                time.sleep(_LOCK_PAUSE_S)
        except OSError as error:
            raise Unavailable(f"{path} cannot be used: {error.strerror}") from error

    def touch(self) -> None:
        """Say that it is in use; to be called every `TOUCH_EVERY_S`."""
        os.utime(self._lock)

    def sweep(self) -> tuple[Path, ...]:
        """Remove what other launchers of this user have abandoned beside it. Returns what is gone."""
        now_s = os.fstat(self._lock).st_mtime  # touched by now; of the same clock as the others' times
        others = (path for path in self.path.parent.glob(f"{_PREFIX}*") if path != self.path and _is_ours(path))
        return tuple(path for path in others if _remove_abandoned(path, now_s))

    def clear(self) -> None:
        """Give back the memory of everything in it. Somebody else may have removed the folder itself."""
        with contextlib.suppress(FileNotFoundError):
            for each in self.path.iterdir():
                if each.name != _LOCK_NAME:
                    each.unlink(missing_ok=True)

    def remove(self) -> None:
        remove(self.path)
        os.close(self._lock)

    def leave(self) -> None:
        """Leave what is in it to whoever comes next."""
        self.touch()
        os.close(self._lock)


def _is_ours(path: Path) -> bool:
    """Everybody may make files in /dev/shm: a name proves nothing."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return False


def _is_locked_by(descriptor: int, path: Path) -> bool:
    """Whether the folder is ours now: a lock that was removed with its folder is none, whatever is there."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), (path / _LOCK_NAME).stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _remove_abandoned(path: Path, now_s: float) -> bool:
    """Others may sweep at the same time, and its own launcher may come back."""
    descriptor = None
    try:
        with contextlib.suppress(FileNotFoundError):  # there may be no lock in it
            descriptor = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW)
        if descriptor is not None and not _is_locked_by(descriptor, path):
            return False
        used_at_s = os.stat(path if descriptor is None else descriptor).st_mtime
        if now_s - used_at_s >= ABANDONED_S:
            remove(path)
            return True
    except OSError:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return False
