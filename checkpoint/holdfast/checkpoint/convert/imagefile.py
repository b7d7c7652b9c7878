"""A `.distcp` file, written from front to back, one tensor after the other."""

import os
from pathlib import Path
from typing import BinaryIO

from holdfast.checkpoint import archive
from holdfast.checkpoint.convert.content import Source, bytes_of
from holdfast.checkpoint.index import Box, Index, Stored, StoredChunk, StoredObject, StoredTensor
from holdfast.checkpoint.manifest import FAST, FileRecord, Hashing, Recorder

NAME = "__0_0.distcp"
_ALIGNMENT_BYTES = 64  # As in the images that training writes.


def write_image(path: Path, source: Source, hashing: Hashing = FAST) -> tuple[Index, FileRecord]:
    """All of `source` in one durable file: what lies where, and the file's record. Raises as `source` does, and
    OSError.
    """
    contents = source.contents
    entries: dict[str, Stored] = {}
    with open(path, "xb") as file:
        image = _Image(file, hashing)
        for name in contents.tensors:
            entries[name] = image.add_tensor(name, source)
        for name in contents.objects:
            entries[name] = image.add_object(source.value(name))
        file.flush()
        os.fsync(file.fileno())
    paths = {name: contents.path_of(name) for name in entries}
    return Index(entries=entries, paths=paths), image.recorder.record()


class _Image:
    def __init__(self, file: BinaryIO, hashing: Hashing) -> None:
        self._file = file
        self._end = 0
        self.recorder = Recorder(hashing)

    def add_tensor(self, name: str, source: Source) -> StoredTensor:
        shape = source.contents.tensors[name]
        frame = archive.frame(shape.dtype, shape.sizes)
        start = self._end
        self._add(frame.before)
        self._add(bytes_of(source.tensor(name)))
        self._add(frame.after)
        self._add(bytes(-self._end % _ALIGNMENT_BYTES))
        chunk = StoredChunk(
            file=NAME,
            start=start,
            length_bytes=frame.length_bytes,
            payload=start + len(frame.before),
            box=Box(offsets=(0,) * len(shape.sizes), sizes=shape.sizes),
        )
        return StoredTensor(str(shape.dtype).removeprefix("torch."), shape.sizes, (chunk,))

    def add_object(self, value: object) -> StoredObject:
        packed = archive.pack_object(value)
        start = self._end
        self._add(packed)
        return StoredObject(file=NAME, start=start, length_bytes=len(packed))

    def _add(self, part: bytes | memoryview) -> None:
        self._file.write(part)
        self.recorder.add(memoryview(part))
        self._end += len(part)
