"""Writing one file as fast as the disk takes it, durably, and hashed on the way.

Large files bypass the page cache: copying a checkpoint into it takes longer than the disk does, and pushes out
what the training data is read from. A file system that refuses to be written to like that is written to through
the cache. Two threads take strides of the file in turn, and each hashes what it then writes: one hashes while
the other waits for the disk.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import threading
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.checkpoint.format.manifest import BLOCK_BYTES, FAST, FileRecord, Hashing

_LIBC = ctypes.CDLL(None, use_errno=True)
_OFFSET = ctypes.c_int64
_START_WRITING = 2  # SYNC_FILE_RANGE_WRITE
# posix_fallocate would fake it by writing into every block of the file; these say that it cannot be had.
_CANNOT = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})

STRIDE_BYTES = 2 * BLOCK_BYTES  # With requests of 1 MiB the disk waits for the processor.
_ALIGNMENT_BYTES = 4096  # Of memory, offset and length; what does not suit a disk is refused, see `_write`.
_REFUSALS = frozenset({errno.EINVAL, errno.EOPNOTSUPP})
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


def write_file(path: Path, parts: Sequence[memoryview], hashing: Hashing = FAST) -> FileRecord:
    """Make the file at `path` consist of `parts`, one after the other; durable on return, all but its name.

    Raises OSError when any of it fails; then a part of the file may be left, but no thread.
    """
    size_bytes = sum(part.nbytes for part in parts)
    is_large = is_direct = size_bytes > BLOCK_BYTES  # Then it bypasses the page cache, where the disk allows that.
    try:
        descriptor = os.open(path, _FLAGS | os.O_DIRECT if is_direct else _FLAGS, 0o666)
    except OSError as error:
        if not is_direct or error.errno not in _REFUSALS:
            raise
        descriptor, is_direct = os.open(path, _FLAGS, 0o666), False
    try:
        if is_large:
            reserve(descriptor, size_bytes)
        blocks = _Writing(descriptor, parts, hashing, is_direct).run()
        os.ftruncate(descriptor, size_bytes)  # The last stride may have been padded.
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return FileRecord(size_bytes=size_bytes, blocks=blocks)


class _Writing:
    """One file on its way to the disk."""

    def __init__(self, descriptor: int, parts: Sequence[memoryview], hashing: Hashing, is_direct: bool) -> None:
        self._descriptor = descriptor
        self._hashing = hashing
        self._is_direct = is_direct
        self._views = [part.cast("B") for part in parts if part.nbytes]
        self._ends = list(accumulate(view.nbytes for view in self._views))
        self._size_bytes = self._ends[-1] if self._ends else 0
        self._strides = iter(range(0, self._size_bytes, STRIDE_BYTES))  # Of both threads: one takes what is next.
        self._blocks: dict[int, str] = {}
        self._errors: list[Exception] = []

    def run(self) -> tuple[str, ...]:
        """The hash of each block. Raises what went wrong first, in whichever thread."""
        helper = threading.Thread(target=self._work, name="holdfast-writer", daemon=True)
        if self._size_bytes > STRIDE_BYTES:
            helper.start()
        self._work()
        if helper.ident is not None:
            helper.join()
        if self._errors:
            raise self._errors[0]
        return tuple(self._blocks[start] for start in sorted(self._blocks))

    def _work(self) -> None:
        """Write one stride after the other, until none is left or any thread has failed."""
        bounce: memoryview | None = None  # Aligned memory for what is in pieces, or not aligned itself.
        try:
            for start in self._strides:
                if self._errors:
                    return
                pieces = self._pieces(start, min(start + STRIDE_BYTES, self._size_bytes))
                stride = padded = pieces[0]
                if len(pieces) > 1 or (self._is_direct and not _is_aligned(stride)):
                    bounce = bounce or memoryview(mmap.mmap(-1, STRIDE_BYTES))
                    end = 0
                    for piece in pieces:
                        bounce[end : end + piece.nbytes] = piece
                        end += piece.nbytes
                    padding = -end % _ALIGNMENT_BYTES
                    bounce[end : end + padding] = bytes(padding)
                    stride, padded = bounce[:end], bounce[: end + padding]
                for offset in range(0, stride.nbytes, BLOCK_BYTES):
                    digest = self._hashing(stride[offset : offset + BLOCK_BYTES])
                    self._blocks[start + offset] = digest.hexdigest()
                self._write(padded, start)
        except Exception as error:  # The helper has nobody above it; `run` hands the error on.
            self._errors.append(error)

    def _pieces(self, start: int, end: int) -> list[memoryview]:
        """The bytes from `start` to `end`, not copied."""
        found: list[memoryview] = []
        number = bisect_right(self._ends, start)
        while start < end:
            view = self._views[number]
            begin = self._ends[number] - view.nbytes
            found.append(view[start - begin : end - begin])
            start += found[-1].nbytes
            number += 1
        return found

    def _write(self, stride: memoryview, offset: int) -> None:
        while stride.nbytes:
            was_direct = self._is_direct  # Another thread may find out meanwhile that the disk refuses that.
            try:
                written = os.pwrite(self._descriptor, stride, offset)
            except OSError as error:
                if not was_direct or error.errno not in _REFUSALS:
                    raise
                # The disk wants more than it was given, or this is what is left of a stride that was cut short.
                flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
                fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
                self._is_direct = False
                continue
            if not written:
                raise OSError(errno.EIO, "the file system takes nothing and does not say why")
            if not was_direct:
                start_writing(self._descriptor, offset, written)
            stride, offset = stride[written:], offset + written


def _is_aligned(memory: memoryview) -> bool:
    address = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    return address % _ALIGNMENT_BYTES == 0 and memory.nbytes % _ALIGNMENT_BYTES == 0


# Two calls of Linux that Python does not offer: hints to a file system that is about to be written to.
#
# Source: https://man7.org/linux/man-pages/man2/fallocate.2.html,
# https://man7.org/linux/man-pages/man2/sync_file_range.2.html


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
