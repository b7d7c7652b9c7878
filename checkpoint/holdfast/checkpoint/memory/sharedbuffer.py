"""One file of shared memory that holds one rank's newest snapshot, whole or not at all.

    page 0    the header: 64-bit words, named below
    record    a msgpack `SnapshotRecord`
    seal      xxh3-128 of each block of the image, 16 bytes each
    image     page-aligned: the bytes of the rank's file of a checkpoint

The generation is even while what the buffer holds is complete, and odd from `begin` to `complete`, so a writer
that is killed at any byte leaves a buffer that holds nothing. Record and seal each carry a digest that covers the
generation they belong to: one that is torn, or of another generation, is none. There is one writer, the rank;
readers and the transfer server may look at any time, and only ever take what a generation that did not change
while they read covers.
"""

import ctypes
import errno
import mmap
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import xxhash

from holdfast.api.errors import Damaged, InvalidInput, Malformed, Problem
from holdfast.checkpoint.format.manifest import BLOCK_BYTES, hash_block
from holdfast.checkpoint.memory import record as wire
from holdfast.checkpoint.memory.record import SnapshotRecord

_MAGIC: Final = int.from_bytes(b"HOLDFAST", "little")
_FORMAT: Final = 1
_PAGE: Final = mmap.PAGESIZE
_HASH_BYTES: Final = 16
_STEP_BYTES: Final = 32 << 20  # So much is taken before it is asked again what the others of a pod have left.
_RECORD_BYTES_MIN: Final = 4 << 20  # About 20,000 tensors.
_RECORD_SHARE: Final = 64  # A large image has room for a record of one part in this many of it.

# The header's words.
_AT_MAGIC, _AT_FORMAT, _AT_CAPACITY, _AT_RECORD_ROOM, _AT_GENERATION = range(5)
_AT_RECORD_LENGTH, _AT_RECORD_DIGEST, _AT_SEAL_LENGTH, _AT_SEAL_DIGEST = range(5, 9)
_AT_COPIES = 9  # The generation times 256, plus how many keepers hold it: one word, so never half of it.
_AT_HELD_GENERATION, _AT_HELD_UNTIL_MS = range(10, 12)
_AT_COPY_MS = 12

_COPIES_MAX: Final = 255
_POPULATE_WRITE: Final = 23  # Not in the mmap module. Source: linux/include/uapi/asm-generic/mman-common.h


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """A complete snapshot. `blocks` are the hashes of the image's blocks, as in a manifest, None while nobody has
    taken them; `copies` is how many keepers hold it.
    """

    generation: int
    record: SnapshotRecord
    blocks: tuple[str, ...] | None
    copies: int


class SharedBuffer:
    """One mapped file. `image` is writable memory of `capacity_bytes`."""

    def __init__(self, path: Path, memory: mmap.mmap, inode: int) -> None:
        self.path = path
        self._memory = memory
        self._inode = inode
        view = memoryview(memory)
        self._words = view[:_PAGE].cast("Q")
        self.capacity_bytes = self._words[_AT_CAPACITY]
        record_room = self._words[_AT_RECORD_ROOM]
        image_start = _image_start(self.capacity_bytes, record_room)
        self._record = view[_PAGE : _PAGE + record_room]
        self._seal = view[_PAGE + record_room : image_start]
        self.image = view[image_start : image_start + self.capacity_bytes]

    @classmethod
    def create(cls, path: Path, capacity_bytes: int, record_bytes: int = 0) -> "SharedBuffer":
        """An empty buffer with every page in place, instead of what is at `path`. Slow: each page is cleared, with
        the interpreter's lock released.

        `record_bytes`: room for the record, at the least. Raises OSError, with ENOSPC and the sizes when it does
        not fit into what is free.
        """
        record_room = max(record_bytes, _RECORD_BYTES_MIN, capacity_bytes // _RECORD_SHARE)
        record_room = _whole_pages(record_room)
        size = _image_start(capacity_bytes, record_room) + _whole_pages(capacity_bytes)
        unfinished = path.with_name(f".{path.name}.new")
        try:
            memory, inode = _allocate(unfinished, size)
            words = memoryview(memory)[:_PAGE].cast("Q")
            words[_AT_FORMAT], words[_AT_CAPACITY], words[_AT_RECORD_ROOM] = _FORMAT, capacity_bytes, record_room
            words[_AT_MAGIC] = _MAGIC
            os.replace(unfinished, path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        return cls(path, memory, inode)

    @classmethod
    def open(cls, path: Path) -> "SharedBuffer":
        """The buffer at `path`. Raises Damaged when the file is none, OSError when there is no file."""
        descriptor = os.open(path, os.O_RDWR)
        try:
            status = os.fstat(descriptor)
            size = status.st_size
            if size < _PAGE:
                raise Damaged(f"{path} is too short to be a buffer")
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        words = memoryview(memory)[:_PAGE].cast("Q")
        if (words[_AT_MAGIC], words[_AT_FORMAT]) != (_MAGIC, _FORMAT):
            raise Damaged(f"{path} is no buffer of this format")
        capacity, record_room = words[_AT_CAPACITY], words[_AT_RECORD_ROOM]
        if record_room % _PAGE or _image_start(capacity, record_room) + _whole_pages(capacity) != size:
            raise Damaged(f"{path} does not have the size that its header says")
        return cls(path, memory, status.st_ino)

    @property
    def record_room_bytes(self) -> int:
        return self._record.nbytes

    @property
    def generation(self) -> int:
        """Even: complete (or never written, at 0). Odd: being written, or given up while it was."""
        return self._words[_AT_GENERATION]

    @property
    def version(self) -> tuple[int, int, int]:
        """Changes whenever what `read` returns does: cheap to look at often."""
        return self.generation, self._words[_AT_SEAL_DIGEST], self._words[_AT_COPIES]

    @property
    def is_at_path(self) -> bool:
        """Whether this is what its name leads to: the file may have been deleted or replaced."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    def begin(self) -> None:
        """From here on, what was in the buffer counts no more and the image may be written."""
        generation = self.generation
        self._words[_AT_GENERATION] = generation + (1 if generation % 2 == 0 else 2)

    def complete(self, record: SnapshotRecord) -> None:
        """The image is written: the snapshot counts. Raises InvalidInput, and holds nothing, when the record does
        not fit its room or the image's size not the buffer.
        """
        words = wire.encode(record)
        if len(words) > self._record.nbytes:
            raise _too_large("record", len(words), self._record.nbytes)
        if record.image_bytes > self.capacity_bytes:
            raise _too_large("image", record.image_bytes, self.capacity_bytes)
        generation = self.generation + 1
        if generation % 2:
            raise ValueError("a buffer is completed after it was begun")
        self._record[: len(words)] = words
        self._words[_AT_RECORD_LENGTH] = len(words)
        self._words[_AT_RECORD_DIGEST] = _digest(generation, words)
        self._words[_AT_GENERATION] = generation

    def read(self) -> HeldSnapshot | None:
        """What the buffer holds now, None when that is nothing complete."""
        generation = self.generation
        if generation == 0 or generation % 2:
            return None
        words = self._region(self._record, _AT_RECORD_LENGTH, _AT_RECORD_DIGEST, generation)
        if words is None:
            return None
        try:
            record = wire.decode(words)
        except Malformed:  # Of another version of this library.
            return None
        if record.image_bytes > self.capacity_bytes:
            return None
        blocks = None
        hashes = self._region(self._seal, _AT_SEAL_LENGTH, _AT_SEAL_DIGEST, generation)
        if hashes is not None and len(hashes) == _HASH_BYTES * block_count(record.image_bytes):
            blocks = tuple(hashes[at : at + _HASH_BYTES].hex() for at in range(0, len(hashes), _HASH_BYTES))
        copies = self._words[_AT_COPIES]
        if self.generation != generation:
            return None
        count = copies % (_COPIES_MAX + 1) if copies >> 8 == generation else 0
        return HeldSnapshot(generation=generation, record=record, blocks=blocks, copies=count)

    def block(self, number: int, image_bytes: int) -> memoryview:
        """A block of the image that is in the buffer, which is that large."""
        start = number * BLOCK_BYTES
        return self.image[start : min(start + BLOCK_BYTES, image_bytes)]

    def seal(self, generation: int, blocks: Sequence[str]) -> None:
        """Say the hashes of the image's blocks, as in a manifest. Nothing happens when the buffer has moved on."""
        hashes = b"".join(map(bytes.fromhex, blocks))
        if self.generation != generation or len(hashes) > self._seal.nbytes:
            return
        self._seal[: len(hashes)] = hashes
        self._words[_AT_SEAL_LENGTH] = len(hashes)
        self._words[_AT_SEAL_DIGEST] = _digest(generation, hashes)

    def mark_copied(self, generation: int, copies: int, took_s: float = 0.0) -> None:
        """So many keepers hold this generation, which took so long. Without effect once the buffer has moved on,
        but for how long it took.
        """
        self._words[_AT_COPY_MS] = max(0, round(took_s * 1000))
        self._words[_AT_COPIES] = generation << 8 | min(copies, _COPIES_MAX)

    @property
    def copy_s(self) -> float:
        """How long the last copy of what was in the buffer took; 0 when none was made."""
        return self._words[_AT_COPY_MS] / 1000

    def hold(self, generation: int, until_s: float) -> None:
        """Ask the rank not to write to this generation until then, on the machine's monotonic clock."""
        self._words[_AT_HELD_GENERATION] = generation
        self._words[_AT_HELD_UNTIL_MS] = max(int(until_s * 1000), 0)

    def is_held(self, now_s: float) -> bool:
        """Whether somebody reads what the buffer holds now. Whoever dies while reading holds it no longer than it
        said.
        """
        is_current = self._words[_AT_HELD_GENERATION] == self.generation
        return is_current and now_s * 1000 < self._words[_AT_HELD_UNTIL_MS]

    def close(self) -> None:
        """Give the mapping back. Memory that others still use (a tensor over it) goes with its last user."""
        for view in (self.image, self._record, self._seal, self._words):
            with suppress(BufferError):
                view.release()
        with suppress(BufferError):
            self._memory.close()

    def _region(self, region: memoryview, at_length: int, at_digest: int, generation: int) -> bytes | None:
        length = self._words[at_length]
        if length > region.nbytes:
            return None
        found = bytes(region[:length])
        return found if _digest(generation, found) == self._words[at_digest] else None


def hashes(buffer: SharedBuffer, image_bytes: int) -> Iterator[str]:
    """The hash of each block of the image, as it is read."""
    for number in range(block_count(image_bytes)):
        yield hash_block(buffer.block(number, image_bytes))


def block_count(image_bytes: int) -> int:
    return -(-image_bytes // BLOCK_BYTES)


def capacity_for(image_bytes: int) -> int:
    """Room for an image of this size and for one a little larger: packed objects vary from step to step."""
    return (block_count(image_bytes) + 1) * BLOCK_BYTES


def _image_start(capacity_bytes: int, record_room: int) -> int:
    return _PAGE + record_room + _whole_pages(_HASH_BYTES * block_count(capacity_bytes))


def _whole_pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _digest(generation: int, content: bytes) -> int:
    return xxhash.xxh3_64_intdigest(content, seed=generation)


def _allocate(path: Path, size: int) -> tuple[mmap.mmap, int]:
    """The file, mapped, and its inode."""
    free = _free_bytes(path.parent, share=2)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        _check(size, free)
        # Without this, memory that is not there would show as a signal that kills the writer.
        for start in range(0, size, _STEP_BYTES):
            step = min(_STEP_BYTES, size - start)
            _check(step, _free_bytes(path.parent))
            os.posix_fallocate(descriptor, start, step)
        memory, inode = mmap.mmap(descriptor, size), os.fstat(descriptor).st_ino
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        reason = f"a snapshot in memory needs {size} bytes and {free} are free for it"
        raise OSError(errno.ENOSPC, reason, str(path)) from error
    finally:
        os.close(descriptor)
    # Map every page now. A kernel before 5.14 does not know how; pages are then mapped when first written. The
    # mmap module's own madvise keeps the interpreter's lock; a call through ctypes does not.
    start_of = ctypes.c_char.from_buffer(memory)
    ctypes.CDLL(None).madvise(
        ctypes.c_void_p(ctypes.addressof(start_of)), ctypes.c_size_t(len(memory)), ctypes.c_int(_POPULATE_WRITE)
    )
    return memory, inode


def _free_bytes(folder: Path, share: int = 1) -> int:
    """Of the file system one part in `share`, and before a memory limit that has the kernel kill somebody. The
    workers of a loader hand over their batches in the same file system, and are killed where it is full.
    """
    free, allowance = shutil.disk_usage(folder).free // share, allowance_bytes()
    return free if allowance is None else max(0, min(free, allowance))


def _check(size: int, free: int) -> None:
    if size > free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _too_large(what: str, size: int, room: int) -> InvalidInput:
    fix = f"this buffer has room for {room} bytes; make a larger one"
    return InvalidInput(Problem(field=f"snapshot.{what}_bytes", value=size, fix=fix))


# How much more memory the cgroups of this process leave it.
#
# A file system that is full says so. A memory limit that is reached has the kernel kill a process: files in memory
# count against it, and the /dev/shm of a pod is as large as its limit.
# Source: https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files,
# https://docs.kernel.org/admin-guide/cgroup-v1/memory.html

_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")
_SPARED_BYTES: Final = 256 << 20  # The workers grow a little as well, and several make buffers at the same time.


@dataclass(frozen=True, slots=True)
class _Names:
    """The files of one version of cgroups; `reclaimable` are lines of memory.stat: what is freed when needed."""

    limit: str
    used: str
    reclaimable: tuple[str, ...]


_V2: Final = _Names("memory.max", "memory.current", ("active_file", "inactive_file", "slab_reclaimable"))
_V1: Final = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))


def allowance_bytes(groups: Path = _GROUPS, own: Path = _OWN) -> int | None:
    """May be negative. None: there is no limit, or nothing can be told of it."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    left = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, names = (groups / "memory", _V1) if controllers else (groups, _V2)
        folder = top / path.lstrip("/")
        # Every group this process is in. A container may see its own at the top, whatever path it is told.
        for each in (folder, *folder.parents):
            if not each.is_relative_to(top):
                break
            with suppress(OSError, ValueError):  # "max", which is no limit, is no number either.
                limit, used = (int((each / name).read_text()) for name in (names.limit, names.used))
                stat = dict(said.split(" ", 1) for said in (each / "memory.stat").read_text().splitlines())
                freed = sum(int(stat.get(name, 0)) for name in names.reclaimable)
                left.append(limit - used + freed - _SPARED_BYTES)
    return min(left, default=None)
