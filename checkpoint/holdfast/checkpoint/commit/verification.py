"""Looking at every block of a checkpoint, whether or not anybody needs it now."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from holdfast.api.errors import Damaged
from holdfast.checkpoint.commit.discovery import read_index, read_manifest
from holdfast.checkpoint.format import index
from holdfast.checkpoint.format.files import Files
from holdfast.checkpoint.format.manifest import BLOCK_BYTES, FRAMEWORK_FILE
from holdfast.checkpoint.format.verifiedfile import NoSource, Tally, VerifiedFile

_THREADS = 4  # A hash is taken at the speed of memory: a few keep a fast disk busy.
_STRIDE_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class Flaw:
    """What is wrong in one place. `file` is empty where it is the checkpoint as a whole, `offset` of the damaged
    block in bytes, None where it is the file as a whole.
    """

    name: str
    file: str
    offset: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Verification:
    """One checkpoint after every byte of it was read: intact when nothing is flawed."""

    name: str
    size_bytes: int
    flaws: tuple[Flaw, ...]

    @property
    def is_intact(self) -> bool:
        return not self.flaws


Progress = Callable[[int], None]
"""Called, from any thread, with the number of bytes that were just verified."""


def verify(files: Files, name: str, *, progress: Progress = lambda size: None) -> Verification:
    """Compare every block of every file with its hash, and the index with the files.

    Raises OSError when the storage fails: that says nothing about the checkpoint.
    """
    try:
        manifest = read_manifest(files, name)
    except Damaged as damage:
        return Verification(name, 0, (Flaw(name, "", None, str(damage)),))
    whole = {file: VerifiedFile(files, f"{name}/{file}", record) for file, record in manifest.files.items()}
    strides = [
        (file, range(first, min(first + _STRIDE_BLOCKS, len(each.record.blocks))))
        for file, each in whole.items()
        for first in range(0, len(each.record.blocks), _STRIDE_BLOCKS)
    ]

    def look(stride: tuple[str, range]) -> list[Flaw]:
        file, numbers = stride
        each, flaws = whole[file], []
        memory = memoryview(bytearray(min(BLOCK_BYTES, each.record.size_bytes)))
        with each.opened() as opened:
            for number in numbers:
                block = memory[: each.size_of(number)]
                try:
                    each.load(opened, number, block, NoSource(), Tally())
                except Damaged:
                    reason = "the block differs from what was written"
                    flaws.append(Flaw(name, file, number * BLOCK_BYTES, reason))
                progress(block.nbytes)
        return flaws

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-verify") as pool:
        flaws = [flaw for found in pool.map(look, strides) for flaw in found]
    is_ours = FRAMEWORK_FILE not in manifest.files
    if is_ours and not any(flaw.file == index.FILE_NAME for flaw in flaws):
        try:
            read_index(files, name, manifest)
        except Damaged as damage:
            # An intact index says something that the files cannot hold: that is no accident of a disk.
            flaws.append(Flaw(name, index.FILE_NAME, None, str(damage)))
    size = sum(record.size_bytes for record in manifest.files.values())
    return Verification(name, size, tuple(flaws))
