"""A checkpoint of any format that is known, opened."""

from pathlib import Path

import torch

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.catalogue import catalogue, choose
from holdfast.checkpoint.commit.discovery import committed_step, read_index, read_manifest
from holdfast.checkpoint.convert.content import Contents, Origin, Shape, Source
from holdfast.checkpoint.convert.dcp import DcpSource
from holdfast.checkpoint.convert.safetensorsfile import SafetensorsSource
from holdfast.checkpoint.convert.torchfile import TorchSource
from holdfast.checkpoint.format.archive import METADATA_FILE
from holdfast.checkpoint.format.files import Files
from holdfast.checkpoint.restore.stored import StoredCheckpoint
from holdfast.checkpoint.storage.address import is_local, read_address
from holdfast.checkpoint.storage.local import parse_uri


class HoldfastSource:
    """A checkpoint of ours, every block verified before it is used. Raises Damaged when it cannot be opened."""

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


_SUFFIX = ".safetensors"


def open_source(uri: str, step: int | None = None) -> Source:
    """A Holdfast directory or object store (its newest checkpoint, or that of `step`) or one `step-…` in it, a
    directory of torch.distributed.checkpoint, a safetensors file or a directory of them, or a file of torch.save.

    Raises InvalidInput when it is none of these, or has no steps to choose from.
    """
    if not is_local(uri) or _is_holdfast(parse_uri(uri)):
        address = read_address(uri)
        return HoldfastSource(
            address.storage, choose(catalogue(address.storage).entries, address.narrowed(step)).name
        )
    if step is not None:
        fix = f"{uri} is no directory of checkpoints: leave the step out"
        raise InvalidInput(Problem(field="--step", value=step, fix=fix))
    return _foreign(uri, parse_uri(uri))


def _is_holdfast(path: Path) -> bool:
    if not path.is_dir():
        return False
    return any(committed_step(name) is not None for name in (path.name, *(each.name for each in path.iterdir())))


def _foreign(uri: str, path: Path) -> Source:
    if path.is_file():
        return SafetensorsSource([path]) if path.suffix == _SUFFIX else TorchSource(path)
    if not path.is_dir():
        raise InvalidInput(Problem(field="source", value=uri, fix="name a file or directory that exists"))
    names = {each.name for each in path.iterdir()}
    if METADATA_FILE in names:
        return DcpSource(path)
    parts = sorted(path / name for name in names if Path(name).suffix == _SUFFIX)
    if parts:
        return SafetensorsSource(parts)
    fix = "name a checkpoint of Holdfast or torch.distributed.checkpoint, safetensors, or a file of torch.save"
    raise InvalidInput(Problem(field="source", value=uri, fix=fix))
