"""Tensors of one safetensors file, or of several that are one model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from holdfast.api.errors import Damaged, InvalidInput, Problem, Unavailable
from holdfast.checkpoint.convert import content
from holdfast.checkpoint.convert.content import Contents, Shape
from holdfast.checkpoint.convert.safetensorsformat import DTYPES, paths_in
from holdfast.checkpoint.errors import Unfit

_REMARK = "a safetensors file has no hashes: nobody can tell whether it is intact"


class SafetensorsSource:
    """Raises Damaged when a file is none, InvalidInput when two hold the same name, Unfit for a dtype that torch
    has not got, Unavailable when the safetensors package is not installed.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._homes: dict[str, Any] = {}
        tensors: dict[str, Shape] = {}
        paths: dict[str, content.Path] = {}
        for file in files:
            opened = _open(file)
            paths |= _paths(file, opened)
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                if name in tensors:
                    fix = f"{file.name} and another file of the directory both hold it; convert them one by one"
                    raise InvalidInput(Problem(field="name", value=name, fix=fix))
                self._homes[name] = opened
                tensors[name] = _shape(name, opened.get_slice(name))
        self.contents = Contents(tensors=tensors, paths=paths, remarks=(_REMARK,))

    def tensor(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self._homes[name].get_tensor(name)
        return found.contiguous()

    def value(self, name: str) -> object:
        raise KeyError(name)  # There are none.


def _open(file: Path) -> Any:
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as error:
        raise Unavailable("safetensors is not installed; pip install 'holdfast[torch]' installs it") from error
    try:
        return safe_open(str(file), framework="pt")
    except SafetensorError as error:
        raise Damaged(f"{file} is no whole safetensors file: {error}") from error


def _paths(file: Path, opened: Any) -> dict[str, content.Path]:
    try:
        return paths_in(opened.metadata())
    except ValueError as error:
        raise Damaged(f"{file} says nothing readable of how its names are nested: {error}") from error


def _shape(name: str, cut: Any) -> Shape:
    dtype = DTYPES.get(cut.get_dtype())
    if dtype is None:
        raise Unfit(f"{name} is of dtype {cut.get_dtype()}, which this torch does not have")
    return Shape(dtype, tuple(cut.get_shape()))
