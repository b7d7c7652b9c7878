"""A committed checkpoint, read verified: whole, or the boxes of its tensors that a rank asks for."""

import pickle
from collections.abc import Iterable

import torch

from holdfast.api.errors import Damaged
from holdfast.checkpoint import archive, index
from holdfast.checkpoint.discovery import read_manifest
from holdfast.checkpoint.errors import Unfit
from holdfast.checkpoint.index import Box, Index, StoredChunk, StoredObject, StoredTensor
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.storage import Files
from holdfast.checkpoint.verified import VerifiedFile


class StoredCheckpoint:
    """One checkpoint. Every method raises Damaged when what it reads is not what was written, and OSError when
    it cannot be read now.
    """

    def __init__(self, files: Files, name: str, manifest: Manifest, index: Index) -> None:
        """`files` holds what the manifest lists below `name/`. Nothing is read yet."""
        self.name = name
        self.manifest = manifest
        self._files = {
            file: VerifiedFile(files, f"{name}/{file}", record) for file, record in manifest.files.items()
        }
        self._index = index

    @classmethod
    def open(cls, files: Files, name: str) -> "StoredCheckpoint":
        """A checkpoint in storage: reads its manifest and index, no tensor yet."""
        manifest = read_manifest(files, name)
        record = manifest.files.get(index.FILE_NAME)
        if record is None:
            raise Damaged(f"the manifest of {name} does not list {index.FILE_NAME}")
        whole = VerifiedFile(files, f"{name}/{index.FILE_NAME}", record).read(0, record.size_bytes)
        return cls(files, name, manifest, index.decode(bytes(whole)))

    def names(self, prefix: str = "") -> list[str]:
        return [name for name in self._index.entries if name.startswith(prefix)]

    def in_file_order(self, names: Iterable[str]) -> list[str]:
        """The names, so that reading them one after the other reads each block once."""
        return sorted(names, key=self._place)

    def read_object(self, name: str) -> object:
        """Raises Unfit when there is no such object, or it needs code to be loaded."""
        stored = self._index.entries.get(name)
        if stored is None or isinstance(stored, StoredTensor):
            raise Unfit(f"{self.name} holds no object {name}")
        packed = self._file(stored.file).read(stored.start, stored.length_bytes)
        try:
            return archive.unpack_object(packed)
        except pickle.UnpicklingError as error:
            raise Unfit(f"{name} in {self.name} is not made of plain values and tensors: {error}") from error

    def read_tensor(self, name: str, box: Box | None = None) -> torch.Tensor:
        """`box` of the tensor (None: all of it), in fresh CPU memory. Raises Unfit when there is none."""
        stored = self._index.entries.get(name)
        if not isinstance(stored, StoredTensor):
            raise Unfit(f"{self.name} holds no tensor {name}")
        wanted = box or Box(offsets=(0,) * len(stored.shape), sizes=stored.shape)
        dtype = _dtype(stored.dtype)
        result = torch.empty(wanted.sizes, dtype=dtype)
        filled = 0
        for chunk in stored.chunks:
            common = chunk.box.overlap(wanted)
            if common is not None:
                result[common.within(wanted)] = self._read_box(chunk, common, dtype)
                filled += common.volume
        if filled != wanted.volume:
            raise Damaged(f"{self.name} holds only a part of {name}")
        return result

    def shape_of(self, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """A tensor's dtype and whole shape. Raises Unfit when there is no such tensor."""
        stored = self._index.entries.get(name)
        if not isinstance(stored, StoredTensor):
            raise Unfit(f"{self.name} holds no tensor {name}")
        return _dtype(stored.dtype), stored.shape

    def verify_share(self, rank: int, world_size: int) -> None:
        """Verify what this rank has not read of its share of the files; the shares of all ranks are all files."""
        for number, file in enumerate(sorted(self._files)):
            if number % world_size == rank:
                self._files[file].verify_rest()

    def _place(self, name: str) -> tuple[str, int]:
        stored = self._index.entries.get(name)
        first = stored.chunks[0] if isinstance(stored, StoredTensor) and stored.chunks else stored
        return (first.file, first.start) if isinstance(first, StoredChunk | StoredObject) else ("", 0)

    def _file(self, name: str) -> VerifiedFile:
        if name not in self._files:
            raise Damaged(f"the manifest of {self.name} does not list {name}")
        return self._files[name]

    def _read_box(self, chunk: StoredChunk, box: Box, dtype: torch.dtype) -> torch.Tensor:
        """Of the chunk's payload, only the rows (first dimension) that `box` covers are read."""
        rows = box.rows_of(chunk.box)
        row_bytes = rows.volume * dtype.itemsize // rows.rows
        start = chunk.payload + (rows.first - chunk.box.first) * row_bytes
        content = self._file(chunk.file).read(start, rows.rows * row_bytes)
        return torch.frombuffer(content, dtype=dtype).view(rows.sizes)[box.within(rows)]


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise Unfit(f"this torch has no dtype {name}")
    return dtype
