"""Tying this process's life to its starter's."""

import ctypes
import os
import signal
from typing import Final

from holdfast.api.errors import Unavailable

# Source: prctl(2), https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
_PR_SET_PDEATHSIG: Final = 1


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent, `parent_pid`, dies; exit now if it already has.

    Raises Unavailable where the kernel has no such service.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise Unavailable(f"The kernel does not tie lives: {os.strerror(ctypes.get_errno())}.")
    if os.getppid() != parent_pid:
        raise SystemExit(0)  # it died between our start and the call above
