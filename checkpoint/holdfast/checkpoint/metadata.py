"""The `.metadata` file: the index in the form torch.distributed.checkpoint reads."""

import pickle
from collections.abc import Mapping

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from holdfast.checkpoint.index import Index, Stored, StoredTensor

FILE_NAME = ".metadata"


def encode(index: Index) -> bytes:
    """The file's bytes: a pickle, which only stock readers open."""
    metadata = Metadata(
        state_dict_metadata={name: _describe(stored) for name, stored in index.entries.items()},
        planner_data=dict(index.paths),
        storage_data=_locate(index.entries),
        storage_meta=StorageMeta(),
    )
    return pickle.dumps(metadata)


def _describe(stored: Stored) -> TensorStorageMetadata | BytesStorageMetadata:
    if not isinstance(stored, StoredTensor):
        return BytesStorageMetadata()
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=getattr(torch, stored.dtype)),
        size=torch.Size(stored.shape),
        chunks=[
            ChunkStorageMetadata(offsets=torch.Size(chunk.box.offsets), sizes=torch.Size(chunk.box.sizes))
            for chunk in stored.chunks
        ],
    )


def _locate(entries: Mapping[str, Stored]) -> dict[MetadataIndex, _StorageInfo]:
    places: dict[MetadataIndex, _StorageInfo] = {}
    for name, stored in entries.items():
        if isinstance(stored, StoredTensor):
            for number, chunk in enumerate(stored.chunks):
                key = MetadataIndex(name, chunk.box.offsets, number)
                places[key] = _StorageInfo(chunk.file, chunk.start, chunk.length_bytes)
        else:
            places[MetadataIndex(name)] = _StorageInfo(stored.file, stored.start, stored.length_bytes)
    return places
