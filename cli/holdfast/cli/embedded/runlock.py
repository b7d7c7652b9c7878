"""One live run per state directory, and whether there is one."""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from holdfast.api.errors import Unavailable
from holdfast.cli.statedirectory import StateDirectory


@contextlib.contextmanager
def run_lock(directory: StateDirectory) -> Iterator[None]:
    """Hold the directory for this process; the kernel lets go when the process dies, however it dies.

    Raises Unavailable when another run holds it, OSError when the directory cannot be made.
    """
    directory.root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "another process"
            raise Unavailable(
                f"{directory.root} is in use by a run that is alive (pid {holder}); "
                "stop it, or give this one another --state-dir"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        os.close(descriptor)


def is_over(directory: StateDirectory) -> bool:
    """Whether a run was here and is not alive any more. False where no run ever held the directory."""
    try:
        descriptor = os.open(directory.lock_file, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        holder = os.read(descriptor, 32).decode(errors="replace").strip()
        if not _lives(holder):
            return True
        # Its number may be another process's by now. The lock is tried only then: a run that begins could meet it.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
    finally:
        os.close(descriptor)


def _lives(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
