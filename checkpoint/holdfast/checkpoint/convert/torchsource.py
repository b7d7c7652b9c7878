"""A file of torch.save: a dictionary, nested as it likes."""

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch

from holdfast.api.errors import Damaged, InvalidInput, Problem
from holdfast.checkpoint.convert.content import Contents, Shape
from holdfast.checkpoint.convert.nesting import flatten
from holdfast.checkpoint.errors import Unfit

_RENAMED = "keys that are numbers have become text, as torch.distributed.checkpoint does it"


class TorchSource:
    """Raises Unfit when it needs code to be loaded, Damaged when it is no such file, InvalidInput when it holds
    no dictionary.
    """

    def __init__(self, path: Path) -> None:
        state = _load(path)
        if not isinstance(state, Mapping):
            fix = "save a dictionary: what has no name cannot be converted"
            raise InvalidInput(Problem(field="source", value=str(path), fix=fix))
        self._values, paths, has_renamed = flatten(state)
        tensors = {
            name: Shape(value.dtype, tuple(value.shape))
            for name, value in self._values.items()
            if isinstance(value, torch.Tensor) and _is_dense(value)
        }
        objects = tuple(name for name in self._values if name not in tensors)
        self.contents = Contents(tensors, objects, paths, remarks=(_RENAMED,) if has_renamed else ())

    def tensor(self, name: str) -> torch.Tensor:
        value = self._values[name]
        assert isinstance(value, torch.Tensor)
        return value.detach().resolve_conj().resolve_neg().contiguous()

    def value(self, name: str) -> object:
        return self._values[name]


def _load(path: Path) -> object:
    """Mapped, where the file is not of the oldest kind: then a tensor takes memory only while it is copied."""
    try:
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise Unfit(f"{path} is not made of plain values and tensors: {error}") from error
    except (RuntimeError, EOFError) as error:
        raise Damaged(f"{path} is no whole file of torch.save: {error}") from error


def _is_dense(tensor: torch.Tensor) -> bool:
    """Others are stored as the objects they are."""
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return is_plain and tensor.layout is torch.strided and not tensor.is_quantized
