"""What stock torch reads of a checkpoint: its tensors and objects as archives of `torch.save`, and `.metadata`.

The stock reader of torch.distributed.checkpoint expects one archive per chunk of a tensor. All but its payload
depends only on dtype and shape, so it is made once, without saving the tensor, and the payload can be copied
straight to its final place.
"""

import io
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, Any, Final

import numpy as np
import torch
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.utils.serialization import config

from holdfast.api.torchnames import TorchName
from holdfast.checkpoint.format.index import Index, StoredTensor
from holdfast.checkpoint.format.nested import NUMBERS

_RECORD = "data/0"
# What NumPy's numbers and arrays of numbers are unpacked with: a learning rate is often one of its numbers.
_NUMPY: Final[list[Any]] = [
    *(each.__reduce__()[0] for each in (np.float64(0), np.zeros(1))),
    *(np.ndarray, np.dtype, bytes),
    *(type(np.dtype(each)) for each in NUMBERS),
]
StorageInfo = _StorageInfo
_SETTINGS: Any = config  # torch installs its methods at run time, where no type checker sees them
open_archive: Callable[[IO[bytes] | str], Any] = torch._C.PyTorchFileReader

_IMPORTED: Final = "`import holdfast.checkpoint` fails: this torch is not supported"
NAMES: Final = (
    TorchName("torch.distributed.checkpoint.filesystem", "_StorageInfo", _IMPORTED),
    TorchName("torch._C", "PyTorchFileReader", _IMPORTED),
)


@dataclass(frozen=True, slots=True)
class Frame:
    """An archive is `before`, the payload, `after`."""

    before: bytes
    payload_bytes: int
    after: bytes

    @property
    def length_bytes(self) -> int:
        return len(self.before) + self.payload_bytes + len(self.after)


@lru_cache(maxsize=16384)
def frame(dtype: torch.dtype, sizes: tuple[int, ...]) -> Frame:
    """The frame of a contiguous tensor on the CPU.

    The archive's own checksums are left out (zero, torch's word for "not computed"): they would be those of
    other content, and the manifest's hashes cover the whole file.
    """
    payload_bytes = dtype.itemsize * torch.Size(sizes).numel()
    with open(os.memfd_create("archive"), "w+b", buffering=0) as file:
        # Without its data the archive has a hole, which takes no memory, however large the tensor is.
        with _SETTINGS.patch({"save.compute_crc32": False}), torch.serialization.skip_data():
            torch.save(torch.empty(sizes, dtype=dtype), file)
        file.seek(0)
        start = int(open_archive(file).get_record_offset(_RECORD))
        end = start + payload_bytes
        size = os.fstat(file.fileno()).st_size
        before, after = os.pread(file.fileno(), start, 0), os.pread(file.fileno(), size - end, end)
    return Frame(before=before, payload_bytes=payload_bytes, after=after)


@dataclass(frozen=True, slots=True)
class Packed:
    """An object that was packed when it had last changed. `content` is the same for equal ones on two ranks."""

    content: bytes
    archive: bytes


def packed(value: object) -> Packed:
    """Of nested dictionaries and lists, of which the order counts."""
    return Packed(content_of(value), pack_object(value))


def content_of(value: object) -> bytes:
    """The same for equal nested dictionaries and lists, which must not contain themselves."""
    into = io.BytesIO()
    pickler = pickle.Pickler(into)
    pickler.fast = True  # Else what is one object twice is another content than two equal ones.
    pickler.dump(value)
    return into.getvalue()


def pack_object(value: object) -> bytes:
    """The archive of anything that is not a tensor to be sharded."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def unpack_object(archive: bytes | bytearray) -> object:
    """The reverse. Runs no code from the archive; raises `pickle.UnpicklingError` where that would be needed, and
    RuntimeError for a sparse tensor whose indices are not within it.
    """
    torch.serialization.add_safe_globals(_NUMPY)
    # Torch warns, once, where nobody has said whether they are checked.
    with torch.sparse.check_sparse_tensor_invariants():  # type: ignore[no-untyped-call]
        return torch.load(io.BytesIO(archive), map_location="cpu", weights_only=True)


METADATA_FILE = ".metadata"


def encode_metadata(index: Index) -> bytes:
    """The index in the form torch.distributed.checkpoint reads: a pickle, which only stock readers open."""
    described: dict[str, metadata.TensorStorageMetadata | metadata.BytesStorageMetadata] = {}
    places: dict[metadata.MetadataIndex, StorageInfo] = {}
    for name, stored in index.entries.items():
        if not isinstance(stored, StoredTensor):
            described[name] = metadata.BytesStorageMetadata()
            places[metadata.MetadataIndex(name)] = StorageInfo(stored.file, stored.start, stored.length_bytes)
            continue
        described[name] = metadata.TensorStorageMetadata(
            properties=metadata.TensorProperties(dtype=getattr(torch, stored.dtype)),
            size=torch.Size(stored.shape),
            chunks=[
                metadata.ChunkStorageMetadata(
                    offsets=torch.Size(chunk.box.offsets), sizes=torch.Size(chunk.box.sizes)
                )
                for chunk in stored.chunks
            ],
        )
        for number, chunk in enumerate(stored.chunks):
            key = metadata.MetadataIndex(name, chunk.box.offsets, number)
            places[key] = StorageInfo(chunk.file, chunk.start, chunk.length_bytes)
    return pickle.dumps(
        metadata.Metadata(
            state_dict_metadata=described,
            planner_data=dict(index.paths),
            storage_data=places,
            storage_meta=metadata.StorageMeta(),
        )
    )
