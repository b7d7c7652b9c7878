"""Unix sockets at paths of any length."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PATH_BYTES_MAX: Final = 107
"""Source: unix(7), https://man7.org/linux/man-pages/man7/unix.7.html (108 with the zero at the end)."""


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """What to bind or connect to for the socket at `path`, good as long as this lasts.

    A path that is too long for the kernel is reached by way of its folder, held open. Raises OSError when there is
    no such folder.
    """
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
