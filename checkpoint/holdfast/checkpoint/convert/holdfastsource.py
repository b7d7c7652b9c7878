"""A checkpoint of ours, every block verified before it is used."""

import torch

from holdfast.checkpoint.convert.content import Contents, Origin, Shape
from holdfast.checkpoint.discovery import read_index, read_manifest
from holdfast.checkpoint.files import Files
from holdfast.checkpoint.stored import StoredCheckpoint


class HoldfastSource:
    """Raises Damaged when it cannot be opened."""

    def __init__(self, files: Files, name: str) -> None:
        manifest = read_manifest(files, name)
        index = read_index(files, name, manifest)
        self._stored = StoredCheckpoint(files, name, manifest, index)
        names = list(index.entries)
        self.contents = Contents(
            tensors={name: Shape(*self._stored.shape_of(name)) for name in names if self._stored.has_tensor(name)},
            objects=tuple(name for name in names if self._stored.has_object(name)),
            paths=index.paths,
            origin=Origin(step=manifest.step, world_size=manifest.world_size, batches=manifest.batches),
        )

    def tensor(self, name: str) -> torch.Tensor:
        return self._stored.read_tensor(name)

    def value(self, name: str) -> object:
        return self._stored.read_object(name)
