"""The `.metadata` of torch.distributed.checkpoint, read without running what it says.

It is a pickle, and a pickle may call anything. This reader knows the few classes that such a file is made of, all
of them plain data, and refuses whatever names another.
"""

import io
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Final

import torch
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata

from holdfast.api.errors import Damaged
from holdfast.checkpoint.convert.content import Contents, Shape
from holdfast.checkpoint.errors import Unfit
from holdfast.checkpoint.format.archive import METADATA_FILE, StorageInfo
from holdfast.checkpoint.format.index import Box
from holdfast.checkpoint.format.nested import NamePath

_DATA: Final[dict[tuple[str, str], Any]] = {
    **{
        (metadata.__name__, name): getattr(metadata, name)
        for name in (
            *("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"),
            *("TensorProperties", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"),
        )
    },
    (StorageInfo.__module__, StorageInfo.__name__): StorageInfo,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): lambda name: torch.strided,
    ("pathlib", "PosixPath"): PurePosixPath,
    ("pathlib._local", "PosixPath"): PurePosixPath,
    ("collections", "OrderedDict"): dict,
}


@dataclass(frozen=True, slots=True)
class Place:
    """An archive in a file of the directory. `transformed` names what was done to its bytes, if anything."""

    file: str
    start: int
    length_bytes: int
    transformed: str


@dataclass(frozen=True, slots=True)
class Described:
    """What the file says. The chunks of a tensor add up to it and lie within it."""

    shapes: Mapping[str, Shape]
    chunks: Mapping[str, tuple[tuple[Box, Place], ...]]
    objects: Mapping[str, Place]
    paths: Mapping[str, NamePath]


class _Reader(pickle._Unpickler):
    """The one in Python: where a damaged pickle names a huge place in its memo, the other one takes the memory."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _DATA:
            return _DATA[module, name]
        found = getattr(torch, name, None) if module == "torch" else None
        if isinstance(found, torch.dtype):
            return found
        raise Unfit(f"{METADATA_FILE} names {module}.{name}, which is no metadata: it is not read")


def read_metadata(document: bytes) -> Described:
    """Raises Unfit when it names anything but plain metadata, Damaged when it makes no sense."""
    try:
        return _describe(_Reader(io.BytesIO(document)).load())
    except (Unfit, Damaged):
        raise
    except Exception as error:  # Damage can make a pickle do anything that its few classes can refuse.
        raise Damaged(f"{METADATA_FILE} cannot be read: {type(error).__name__}: {error}") from error


def _describe(found: Any) -> Described:
    """Whatever is not as it should be raises something."""
    shapes: dict[str, Shape] = {}
    chunks: dict[str, tuple[tuple[Box, Place], ...]] = {}
    objects: dict[str, Place] = {}
    for name, each in found.state_dict_metadata.items():
        if not isinstance(each, TensorStorageMetadata):
            objects[_text(name)] = _place(found.storage_data[MetadataIndex(name)])
            continue
        dtype, sizes = each.properties.dtype, tuple(map(_count, each.size))
        if not isinstance(dtype, torch.dtype):
            raise Damaged(f"{METADATA_FILE} has {dtype!r} for a dtype")
        shapes[_text(name)] = Shape(dtype, sizes)
        boxes = [Box(tuple(map(_count, one.offsets)), tuple(map(_count, one.sizes))) for one in each.chunks]
        chunks[name] = tuple((box, _place(found.storage_data[MetadataIndex(name, box.offsets)])) for box in boxes)
        for box, place in chunks[name]:
            if not place.transformed and box.volume * dtype.itemsize > place.length_bytes:
                raise Damaged(
                    f"{METADATA_FILE} has a chunk of {name} that is larger than its place in {place.file}"
                )
            if len(box.ends) != len(sizes) or any(end > size for end, size in zip(box.ends, sizes, strict=True)):
                raise Damaged(f"{METADATA_FILE} has a chunk of {name} that does not lie within it")
        if sum(box.volume for box in boxes) != torch.Size(sizes).numel():
            raise Damaged(f"{METADATA_FILE} has chunks of {name} that do not add up to it")
    planned = found.planner_data if isinstance(found.planner_data, dict) else {}
    paths = {
        _text(name): tuple(step if isinstance(step, int) else _text(step) for step in path)
        for name, path in planned.items()
    }
    return Described(shapes, chunks, objects, paths)


def _place(info: Any) -> Place:
    transformed = getattr(info, "transform_descriptors", None) or ()
    file = PurePath(_text(info.relative_path)).name
    return Place(file, _count(info.offset), _count(info.length), ", ".join(map(str, transformed)))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Damaged(f"{METADATA_FILE} has {value!r} for a name")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise Damaged(f"{METADATA_FILE} has {value!r} for a number")
    return value


_REMARK = "a checkpoint of torch.distributed.checkpoint has no hashes: nobody can tell whether it is intact"


class DcpSource:
    """A directory of stock torch.distributed.checkpoint. It has no hashes: what is damaged there may show or not.

    Raises Damaged or Unfit when its metadata cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._described = read_metadata((folder / METADATA_FILE).read_bytes())
        self.contents = Contents(
            tensors=self._described.shapes,
            objects=tuple(self._described.objects),
            paths=self._described.paths,
            remarks=(_REMARK,),
        )

    def tensor(self, name: str) -> torch.Tensor:
        shape = self._described.shapes[name]
        whole = torch.empty(shape.sizes, dtype=shape.dtype)
        for box, place in self._described.chunks[name]:
            found = self._load(name, place)
            kind = whole.dtype, box.sizes
            if not isinstance(found, torch.Tensor) or (found.dtype, tuple(found.shape)) != kind:
                raise Damaged(f"{self._folder} holds something else than a chunk of {name}")
            slices = tuple(slice(start, end) for start, end in zip(box.offsets, box.ends, strict=True))
            whole[slices] = found
        return whole

    def value(self, name: str) -> object:
        return self._load(name, self._described.objects[name])

    def _load(self, name: str, place: Place) -> object:
        if place.transformed:
            raise Unfit(f"{name} in {self._folder} is stored transformed ({place.transformed})")
        try:
            with open(self._folder / place.file, "rb") as file:
                if place.start + place.length_bytes > os.fstat(file.fileno()).st_size:
                    raise EOFError(f"{place.file} ends before {place.start + place.length_bytes}")
                file.seek(place.start)
                packed = file.read(place.length_bytes)
            return torch.load(io.BytesIO(packed), map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise Unfit(f"{name} in {self._folder} is not made of plain values and tensors: {error}") from error
        except (RuntimeError, EOFError, FileNotFoundError) as error:
            raise Damaged(f"{name} in {self._folder} cannot be read: {error}") from error
