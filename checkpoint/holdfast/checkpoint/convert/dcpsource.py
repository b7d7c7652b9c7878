"""A directory of stock torch.distributed.checkpoint. It has no hashes: what is damaged there may show or not."""

import io
import os
import pickle
from pathlib import Path

import torch

from holdfast.api.errors import Damaged
from holdfast.checkpoint.convert import dcpmetadata
from holdfast.checkpoint.convert.content import Contents
from holdfast.checkpoint.convert.dcpmetadata import Place
from holdfast.checkpoint.errors import Unfit

_REMARK = "a checkpoint of torch.distributed.checkpoint has no hashes: nobody can tell whether it is intact"


class DcpSource:
    """Raises Damaged or Unfit when its metadata cannot be used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._described = dcpmetadata.read((folder / dcpmetadata.FILE_NAME).read_bytes())
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
            if not isinstance(found, torch.Tensor) or (found.dtype, tuple(found.shape)) != (
                whole.dtype,
                box.sizes,
            ):
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
            archive = self._read(place)
            return torch.load(io.BytesIO(archive), map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise Unfit(f"{name} in {self._folder} is not made of plain values and tensors: {error}") from error
        except (RuntimeError, EOFError, FileNotFoundError) as error:
            raise Damaged(f"{name} in {self._folder} cannot be read: {error}") from error

    def _read(self, place: Place) -> bytes:
        with open(self._folder / place.file, "rb") as file:
            if place.start + place.length_bytes > os.fstat(file.fileno()).st_size:
                raise EOFError(f"{place.file} ends before {place.start + place.length_bytes}")
            file.seek(place.start)
            return file.read(place.length_bytes)
