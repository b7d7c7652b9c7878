"""Memory for the blocks that several ranks need, which the ranks of a host share.

Each rank has slots of its own to fill, in two halves: while the blocks in one half are put to use, those of the
next wave are read into the other. The files are nameless as soon as all have opened them, so nothing is left
behind by whoever dies.
"""

import mmap
import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.format.manifest import BLOCK_BYTES

SLOTS = 4  # Blocks a rank has in memory per wave: enough that a wave is long compared to agreeing on it.
_SHARED_MEMORY = Path("/dev/shm")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def host_name(folder: Path = _SHARED_MEMORY) -> str:
    """The same on two ranks if and only if they see the same shared memory. Unlike any other where that cannot be
    told.
    """
    try:
        return f"{_BOOT.read_text().strip()}:{os.stat(folder).st_dev}:{os.getuid()}"
    except OSError:
        return secrets.token_hex(16)


class BlockPool:
    """The slots of all ranks of this host; see `open`."""

    def __init__(self, memories: Mapping[int, mmap.mmap]) -> None:
        self._memories = memories

    @classmethod
    def open(cls, group: SaveGroup, hosts: list[str], folder: Path = _SHARED_MEMORY) -> "BlockPool":
        """Collective; `hosts` names the host of every rank. Raises OSError, on every rank alike, when memory
        cannot be shared after all.
        """
        neighbours = [rank for rank, host in enumerate(hosts) if host == hosts[group.rank]]
        own, path, reason = _create(folder, is_shared=len(neighbours) > 1)
        memories: dict[int, mmap.mmap] = {} if own is None else {group.rank: own}
        try:
            said = group.exchange(path.encode())
            try:
                for rank in neighbours:
                    if rank != group.rank and not reason:
                        memories[rank] = _open(said[rank].decode())
            except OSError as error:
                reason = str(error)
            told = [each.decode() for each in group.exchange(reason.encode())]
        finally:
            if path:
                Path(path).unlink(missing_ok=True)
        if any(told):
            raise OSError(f"ranks of one host cannot share memory: {'; '.join(sorted(set(filter(None, told))))}")
        return cls(memories)

    def is_near(self, rank: int) -> bool:
        """Whether it is a rank of this host."""
        return rank in self._memories

    def slot(self, rank: int, half: int, number: int) -> memoryview:
        """A slot of a rank of this host."""
        start = (half * SLOTS + number) * BLOCK_BYTES
        return memoryview(self._memories[rank])[start : start + BLOCK_BYTES]


def _create(folder: Path, *, is_shared: bool) -> tuple[mmap.mmap | None, str, str]:
    """The memory, the file it is in, and why there is neither."""
    size = 2 * SLOTS * BLOCK_BYTES
    if not is_shared:
        return mmap.mmap(-1, size), "", ""
    try:
        descriptor, path = tempfile.mkstemp(prefix=".holdfast-restore-", dir=folder)
    except OSError as error:
        return None, "", str(error)
    try:
        os.posix_fallocate(descriptor, 0, size)
        return mmap.mmap(descriptor, size), path, ""
    except OSError as error:
        os.unlink(path)
        return None, "", str(error)
    finally:
        os.close(descriptor)


def _open(path: str) -> mmap.mmap:
    if not path:
        raise FileNotFoundError("a neighbour has no memory to share")
    descriptor = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, 2 * SLOTS * BLOCK_BYTES)
    finally:
        os.close(descriptor)
