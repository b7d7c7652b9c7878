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
from contextlib import ExitStack
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
        size_bytes = 2 * SLOTS * BLOCK_BYTES
        memories: dict[int, mmap.mmap] = {}
        shared = reason = ""
        with ExitStack() as opened:
            try:
                if len(neighbours) == 1:
                    memories[group.rank] = mmap.mmap(-1, size_bytes)
                else:
                    descriptor, path = tempfile.mkstemp(prefix=".holdfast-restore-", dir=folder)
                    opened.callback(Path(path).unlink, missing_ok=True)
                    opened.callback(os.close, descriptor)
                    os.posix_fallocate(descriptor, 0, size_bytes)
                    memories[group.rank] = mmap.mmap(descriptor, size_bytes)
                    shared = path
            except OSError as error:
                reason = str(error)
            said = group.exchange(shared.encode())
            try:
                for rank in neighbours:
                    if rank != group.rank and not reason:
                        if not said[rank]:
                            raise FileNotFoundError("a neighbour has no memory to share")
                        with open(said[rank].decode(), "r+b") as file:
                            memories[rank] = mmap.mmap(file.fileno(), size_bytes)
            except OSError as error:
                reason = str(error)
            told = [each.decode() for each in group.exchange(reason.encode())]
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
