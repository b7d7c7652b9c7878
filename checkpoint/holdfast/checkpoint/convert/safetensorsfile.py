"""Files of safetensors, read and written: what they can hold, and how we write what they have no word for.

A file is the header's length (8 bytes, little-endian), the header (JSON, padded with spaces), and the tensors'
content without gaps. Source: https://github.com/huggingface/safetensors#format
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from holdfast.api.errors import Damaged, InvalidInput, Problem, Unavailable
from holdfast.checkpoint.convert.content import Contents, Shape, Source, bytes_of, fresh
from holdfast.checkpoint.errors import Unfit
from holdfast.checkpoint.format.nested import NamePath

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
NAMES: Final[Mapping[torch.dtype, str]] = {dtype: name for name, dtype in DTYPES.items()}

_METADATA = "__metadata__"
_PATHS = "holdfast.paths"
_ALIGNMENT_BYTES = 8


def order(tensors: Mapping[str, Shape]) -> list[str]:
    """The names in the order of their content: the widest first, so that each is aligned."""
    return sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))


def header(contents: Contents) -> bytes:
    """The file's beginning. Names that are not simply nested keep their path in the file's own metadata."""
    paths = {name: contents.path_of(name) for name in contents.tensors if name in contents.paths}
    entries: dict[str, object] = {_METADATA: {"format": "pt", _PATHS: json.dumps(paths)}}
    end = 0
    for name in order(contents.tensors):
        shape = contents.tensors[name]
        start, end = end, end + shape.size_bytes
        entries[name] = {"dtype": NAMES[shape.dtype], "shape": list(shape.sizes), "data_offsets": [start, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text


_REMARK = "a safetensors file has no hashes: nobody can tell whether it is intact"


class SafetensorsSource:
    """Tensors of one file, or of several that are one model.

    Raises Damaged when a file is none, InvalidInput when two hold the same name, Unfit for a dtype that torch
    has not got, Unavailable when the safetensors package is not installed.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._homes: dict[str, Any] = {}
        tensors: dict[str, Shape] = {}
        paths: dict[str, NamePath] = {}
        try:
            from safetensors import SafetensorError, safe_open
        except ModuleNotFoundError as error:
            raise Unavailable("safetensors is not installed; pip install 'holdfast[torch]' installs it") from error
        for file in files:
            try:
                opened: Any = safe_open(str(file), framework="pt")
                found = json.loads((opened.metadata() or {}).get(_PATHS, "{}"))  # There are none in others' files.
                if not isinstance(found, dict):
                    raise ValueError(f"{_PATHS} is no object")
                paths |= {name: tuple(path) for name, path in found.items()}
            except SafetensorError as error:
                raise Damaged(f"{file} is no whole safetensors file: {error}") from error
            except ValueError as error:
                raise Damaged(f"{file} says nothing readable of how its names are nested: {error}") from error
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                if name in tensors:
                    fix = f"{file.name} and another file of the directory both hold it; convert them one by one"
                    raise InvalidInput(Problem(field="name", value=name, fix=fix))
                self._homes[name] = opened
                cut = opened.get_slice(name)
                dtype = DTYPES.get(cut.get_dtype())
                if dtype is None:
                    raise Unfit(f"{name} is of dtype {cut.get_dtype()}, which this torch does not have")
                tensors[name] = Shape(dtype, tuple(cut.get_shape()))
        self.contents = Contents(tensors=tensors, paths=paths, remarks=(_REMARK,))

    def tensor(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self._homes[name].get_tensor(name)
        return found.contiguous()

    def value(self, name: str) -> object:
        raise KeyError(name)  # There are none.


def write_safetensors(source: Source, target: Path) -> None:
    """One tensor after the other. Raises Unfit, with the names, when there is anything that such a file cannot
    hold; else as `source` does, and OSError.
    """
    contents = source.contents
    if contents.objects:
        raise Unfit(
            f"safetensors holds tensors only, and these are none: {_some(contents.objects)}; leave them out with "
            "--tensors-only, or choose a part with --select"
        )
    strange = [f"{name} ({shape})" for name, shape in contents.tensors.items() if shape.dtype not in NAMES]
    if strange:
        raise Unfit(f"safetensors has no such dtype: {_some(strange)}")
    with fresh(target) as path, open(path, "xb") as file:
        file.write(header(contents))
        for name in order(contents.tensors):
            file.write(bytes_of(source.tensor(name)))
        file.flush()
        os.fsync(file.fileno())


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
