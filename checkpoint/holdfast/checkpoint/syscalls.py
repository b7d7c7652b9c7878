"""Two calls of Linux that Python does not offer: hints to a file system that is about to be written to.

Source: https://man7.org/linux/man-pages/man2/fallocate.2.html,
https://man7.org/linux/man-pages/man2/sync_file_range.2.html
"""

import ctypes
import errno
import os
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)
_OFFSET = ctypes.c_int64
_START_WRITING = 2  # SYNC_FILE_RANGE_WRITE
# posix_fallocate would fake it by writing into every block of the file; these say that it cannot be had.
_CANNOT = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


def reserve(descriptor: int, size_bytes: int) -> None:
    """Have the file system set aside room for a file of that size, if it can.

    Raises OSError when it has not got as much (ENOSPC, EDQUOT) or the file may not be as large (EFBIG).
    """
    while (error := _call("fallocate", descriptor, 0, _OFFSET(0), _OFFSET(size_bytes))) == errno.EINTR:
        pass
    if error and error not in _CANNOT:
        raise OSError(error, os.strerror(error))


def start_writing(descriptor: int, offset: int, length_bytes: int) -> None:
    """Have what is in the page cache go to the disk from now on, so that a later fsync has less to wait for.

    Whether it did is for fsync to say.
    """
    _call("sync_file_range", descriptor, _OFFSET(offset), _OFFSET(length_bytes), _START_WRITING)


def _call(name: str, *arguments: Any) -> int:
    """The error number, 0 for none. Other threads run meanwhile."""
    function = getattr(_LIBC, name, None)  # musl and others have not got all of them.
    if function is None:
        return errno.ENOSYS
    return ctypes.get_errno() if function(*arguments) else 0
