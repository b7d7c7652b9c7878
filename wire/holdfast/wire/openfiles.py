"""How many files and connections this process may have open."""

import errno
import resource
from typing import Final

# What Linux allows by default where it is not bounded otherwise. Source: man 5 proc, fs/nr_open
_UNBOUNDED: Final = 1 << 20

OUT_OF_FILES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""Errors of `accept` that come again at once: the caller still waits. After others, it is gone."""

ACCEPT_AGAIN_S: Final = 0.2
"""How long whoever listens waits after one of those."""


def open_files_max() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNBOUNDED if soft == resource.RLIM_INFINITY else soft


def raise_open_files_max() -> int:
    """Take all that the hard limit allows; what there is then. Children inherit it.

    Not for processes that start scripts of others: `select` cannot wait for a descriptor beyond 1023.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return open_files_max()
