"""The header of a safetensors file: what it can hold, and how we write what it has no word for.

A file is the header's length (8 bytes, little-endian), the header (JSON, padded with spaces), and the tensors'
content without gaps. Source: https://github.com/huggingface/safetensors#format
"""

import json
from collections.abc import Mapping
from typing import Final

import torch

from holdfast.checkpoint.convert.content import Contents, Path, Shape

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
    entries: dict[str, object] = {_METADATA: {"format": "pt", _PATHS: _encode(contents)}}
    end = 0
    for name in order(contents.tensors):
        shape = contents.tensors[name]
        start, end = end, end + shape.size_bytes
        entries[name] = {
            "dtype": NAMES[shape.dtype],
            "shape": list(shape.sizes),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text


def paths_in(metadata: Mapping[str, str] | None) -> dict[str, Path]:
    """The paths a file of ours has; none in others. Raises ValueError when they cannot be read."""
    found = json.loads((metadata or {}).get(_PATHS, "{}"))
    if not isinstance(found, dict):
        raise ValueError(f"{_PATHS} is no object")
    return {name: tuple(path) for name, path in found.items()}


def _encode(contents: Contents) -> str:
    return json.dumps({name: contents.path_of(name) for name in contents.tensors if name in contents.paths})
