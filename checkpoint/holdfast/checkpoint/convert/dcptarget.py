"""Writing checkpoints in folders: of stock torch.distributed.checkpoint, and ours, which is that and more."""

import os
from pathlib import Path

from holdfast.checkpoint import index, manifest, metadata
from holdfast.checkpoint.convert.content import Origin, Source
from holdfast.checkpoint.convert.fresh import fresh, sync_folder, write_whole
from holdfast.checkpoint.convert.imagefile import NAME, write_image
from holdfast.checkpoint.index import Index
from holdfast.checkpoint.manifest import FAST, FileRecord, Hashing, Manifest, hashing_with
from holdfast.checkpoint.naming import committed_name
from holdfast.checkpoint.signing import given_keys


def write_dcp(source: Source, target: Path) -> None:
    """A directory that torch.distributed.checkpoint loads. Raises as `source` does, and OSError."""
    with fresh(target) as folder:
        folder.mkdir()
        _fill(folder, source)
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
        files = {NAME: record, index.FILE_NAME: manifest.record_of([memoryview(document)], hashing)}
        described = (folder / metadata.FILE_NAME).read_bytes()
        files[metadata.FILE_NAME] = manifest.record_of([memoryview(described)], hashing)
        write_whole(folder / manifest.FILE_NAME, manifest.encode(_manifest(origin, files), keys))
        sync_folder(folder)
        sync_folder(root)


def _fill(folder: Path, source: Source, hashing: Hashing = FAST) -> tuple[Index, FileRecord]:
    """What both kinds have."""
    found, record = write_image(folder / NAME, source, hashing)
    write_whole(folder / metadata.FILE_NAME, metadata.encode(found))
    return found, record


def _manifest(origin: Origin, files: dict[str, FileRecord]) -> Manifest:
    return Manifest(
        format=manifest.FORMAT,
        step=origin.step,
        round=0,
        parent=None,
        world_size=origin.world_size,
        batches=origin.batches,
        files=files,
    )
