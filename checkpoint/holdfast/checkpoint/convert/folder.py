"""Writing checkpoints in folders, one tensor after the other: of stock torch.distributed.checkpoint, and ours,
which is that and more.
"""

import os
from pathlib import Path

from holdfast.checkpoint.commit.discovery import committed_name
from holdfast.checkpoint.convert.content import Source, bytes_of, fresh, write_whole
from holdfast.checkpoint.format import archive, index, manifest
from holdfast.checkpoint.format.index import Box, Index, Stored, StoredChunk, StoredObject, StoredTensor
from holdfast.checkpoint.format.manifest import (
    FAST,
    FileRecord,
    Hashing,
    Manifest,
    Recorder,
    given_keys,
    hashing_with,
)
from holdfast.checkpoint.storage.local import sync_folder

_IMAGE_FILE = "__0_0.distcp"
_ALIGNMENT_BYTES = 64  # As in the images that training writes.


def write_dcp(source: Source, target: Path) -> None:
    """A directory that torch.distributed.checkpoint loads. Raises as `source` does, and OSError."""
    with fresh(target) as folder:
        folder.mkdir()
        _fill(folder, source, FAST)
        sync_folder(folder)


def write_holdfast(source: Source, target: Path) -> None:
    """A directory of checkpoints with one in it, which any round restores: it is of round 0, before every other.
    It is signed where the environment names keys. Raises as `source` does, and OSError.
    """
    origin, keys = source.contents.origin, given_keys(os.environ)
    hashing = hashing_with(keys)
    with fresh(target) as root:
        folder = root / committed_name(origin.step)
        folder.mkdir(parents=True)
        found, record = _fill(folder, source, hashing)
        document = index.encode(found)
        write_whole(folder / index.FILE_NAME, document)
        described = (folder / archive.METADATA_FILE).read_bytes()
        files = {_IMAGE_FILE: record}
        for name, content in ((index.FILE_NAME, document), (archive.METADATA_FILE, described)):
            files[name] = manifest.record_of([memoryview(content)], hashing)
        whole = Manifest(
            format=manifest.FORMAT,
            step=origin.step,
            round=0,
            parent=None,
            world_size=origin.world_size,
            batches=origin.batches,
            files=files,
        )
        write_whole(folder / manifest.FILE_NAME, manifest.encode(whole, keys))
        sync_folder(folder)
        sync_folder(root)


def _fill(folder: Path, source: Source, hashing: Hashing) -> tuple[Index, FileRecord]:
    """What both kinds have: all of `source` in one durable `.distcp` file, written from front to back, and the
    metadata of it. Returns what lies where, and the file's record.
    """
    contents, recorder, end = source.contents, Recorder(hashing), 0
    entries: dict[str, Stored] = {}
    with open(folder / _IMAGE_FILE, "xb") as file:

        def add(part: bytes | memoryview) -> None:
            nonlocal end
            file.write(part)
            recorder.add(memoryview(part))
            end += len(part)

        for name, shape in contents.tensors.items():
            start, frame = end, archive.frame(shape.dtype, shape.sizes)
            for part in (frame.before, bytes_of(source.tensor(name)), frame.after):
                add(part)
            add(bytes(-end % _ALIGNMENT_BYTES))
            box = Box(offsets=(0,) * len(shape.sizes), sizes=shape.sizes)
            chunk = StoredChunk(_IMAGE_FILE, start, frame.length_bytes, start + len(frame.before), box)
            entries[name] = StoredTensor(str(shape.dtype).removeprefix("torch."), shape.sizes, (chunk,))
        for name in contents.objects:
            packed = archive.pack_object(source.value(name))
            entries[name] = StoredObject(file=_IMAGE_FILE, start=end, length_bytes=len(packed))
            add(packed)
        file.flush()
        os.fsync(file.fileno())
    found = Index(entries=entries, paths={name: contents.path_of(name) for name in entries})
    write_whole(folder / archive.METADATA_FILE, archive.encode_metadata(found))
    return found, recorder.record()
