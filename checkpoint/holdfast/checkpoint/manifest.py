"""The manifest: what a committed checkpoint consists of, down to a hash of every block of every file.

It is a JSON document `{"seal": ..., "body": {...}}`; the seal is the hash of the body's bytes, so that damage
to the manifest itself shows as well. Hashes are XXH3-128: they find accidents, not forgeries.

Whoever can seal a manifest can write any. So every number has a bound, names name files of the folder, and each
file has as many blocks as it is long: what is read by a manifest takes no more time and memory than its files.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import xxhash

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Damaged, Malformed

FILE_NAME = "manifest.json"
FORMAT = 1
BLOCK_BYTES = 4 << 20  # Small enough that a resharded read verifies little more than it needs.
BYTES_MAX = 1 << 30  # Of the document: the hashes of the blocks of more than 100 TB.
WORLD_MAX = 1 << 20  # Ten times the ranks of the largest clusters there are.

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""A number of steps, batches or bytes."""
FileName = Annotated[str, msgspec.Meta(pattern=r"^(?!\.\.?\Z)[A-Za-z0-9_.-]{1,255}\Z")]
"""Of a file in the checkpoint's own folder."""
_Hash = Annotated[str, msgspec.Meta(min_length=32, max_length=32)]
_World = Annotated[int, msgspec.Meta(ge=1, le=WORLD_MAX)]


class FileRecord(msgspec.Struct, frozen=True):
    """A file's size and the hash of each block of `BLOCK_BYTES`; the last one may be shorter."""

    size_bytes: Count
    blocks: tuple[_Hash, ...]


class Manifest(msgspec.Struct, frozen=True):
    """One checkpoint: the state after `step` completed steps, committed by `round`.

    `parent` is the step that round had restored, None when it started afresh: it tells which older checkpoints
    are this one's past and which belong to a history that was given up. `batches` is how many batches each
    rank had taken. `healthy` is whether the last loss and gradient norm of every rank that could tell were finite,
    None when none could.
    """

    format: int
    step: Count
    round: Count
    parent: Count | None
    world_size: _World
    batches: Count
    files: dict[FileName, FileRecord]
    healthy: bool | None = None


class _Sealed(msgspec.Struct, frozen=True):
    seal: str
    body: msgspec.Raw


def hash_block(block: bytes | bytearray | memoryview) -> str:
    return xxhash.xxh3_128_hexdigest(block)


class Recorder:
    """The record of a file that is seen from front to back, piece by piece."""

    def __init__(self) -> None:
        self._size = 0
        self._blocks: list[str] = []
        self._digest = xxhash.xxh3_128()

    def add(self, part: memoryview) -> None:
        """What comes next in the file."""
        left = part.cast("B")
        while left.nbytes:
            room = BLOCK_BYTES - self._size % BLOCK_BYTES
            self._digest.update(left[:room])
            self._size += min(room, left.nbytes)
            left = left[room:]
            if self._size % BLOCK_BYTES == 0:
                self._end_block()

    def record(self) -> FileRecord:
        """Of all that was added; nothing may be added any more."""
        if self._size % BLOCK_BYTES:
            self._end_block()
        return FileRecord(size_bytes=self._size, blocks=tuple(self._blocks))

    def _end_block(self) -> None:
        self._blocks.append(self._digest.hexdigest())
        self._digest.reset()


def record_of(parts: Sequence[memoryview]) -> FileRecord:
    """The record of a file that consists of `parts`, one after the other."""
    recorder = Recorder()
    for part in parts:
        recorder.add(part)
    return recorder.record()


def encode(manifest: Manifest) -> bytes:
    """The file's bytes."""
    body = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Sealed(seal=hash_block(body), body=msgspec.Raw(body)))


def decode(document: bytes) -> Manifest:
    """Raises Damaged when the bytes are not what `encode` made of a checkpoint that can be, or are of a format
    that this version cannot read.
    """
    if len(document) > BYTES_MAX:
        raise Damaged(f"the manifest has {len(document)} bytes, more than the {BYTES_MAX} that one may have")
    try:
        sealed = decode_json(document, _Sealed)
        body = bytes(sealed.body)
        if hash_block(body) != sealed.seal:
            raise Damaged("the manifest does not match its seal")
        manifest = decode_json(body, Manifest)
    except Malformed as error:
        raise Damaged(f"the manifest cannot be read: {error}") from error
    if manifest.format != FORMAT:
        raise Damaged(f"the manifest is of format {manifest.format}, this version reads {FORMAT}")
    if manifest.parent is not None and manifest.parent > manifest.step:
        raise Damaged(f"the manifest of step {manifest.step} says that it goes on from step {manifest.parent}")
    for name, record in manifest.files.items():
        if len(record.blocks) != -(-record.size_bytes // BLOCK_BYTES):
            raise Damaged(f"{name} is said to have {record.size_bytes} bytes in {len(record.blocks)} blocks")
    return manifest
