"""Files of torch.save, read and written: a dictionary, nested as it likes, under flat names.

The way to flat names and back changes nothing. A dictionary is nested, and so is a list with a tensor or a
dictionary anywhere in it. All else is one object: plain lists, tuples, empty dictionaries. Names are joined with
dots. But for what is empty, these are the names that torch.distributed.checkpoint gives.
"""

import io
import os
import pickle
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.utils.serialization import config

from holdfast.api.errors import Damaged, InvalidInput, Problem
from holdfast.checkpoint.convert.content import Contents, NamePath, Shape, Source, bytes_of
from holdfast.checkpoint.convert.fresh import fresh
from holdfast.checkpoint.errors import Unfit


def flatten(state: Mapping[Any, object]) -> tuple[dict[str, object], dict[str, NamePath], bool]:
    """The values and paths by flat name, and whether any key was not text and has become it.

    Raises InvalidInput when two values would get the same name.
    """
    values: dict[str, object] = {}
    paths: dict[str, NamePath] = {}
    has_renamed = False
    for path, is_renamed, value in _leaves(state, (), is_renamed=False):
        name = ".".join(map(str, path))
        if name in values:
            fix = "rename one of the two that have this name when their keys are joined with dots"
            raise InvalidInput(Problem(field="name", value=name, fix=fix))
        values[name], paths[name] = value, path
        has_renamed = has_renamed or is_renamed
    return values, paths, has_renamed


def nest(values: Mapping[str, object], paths: Mapping[str, NamePath]) -> dict[str, Any]:
    """The reverse: numbers in paths are places in lists. Raises InvalidInput when paths contradict each other."""
    root: dict[str, Any] = {}
    for name, value in values.items():
        path = paths.get(name, (name,))
        holder: Any = root
        for key, below in pairwise(path):
            holder = _child(holder, key, [] if isinstance(below, int) else {}, name)
        _child(holder, path[-1], value, name, is_leaf=True)
    return root


def _leaves(value: object, path: NamePath, *, is_renamed: bool) -> Iterator[tuple[NamePath, bool, object]]:
    if isinstance(value, Mapping) and (value or not path):
        for key, each in value.items():
            yield from _leaves(each, (*path, str(key)), is_renamed=is_renamed or not isinstance(key, str))
    elif isinstance(value, list) and _is_nested(value):
        for place, each in enumerate(value):
            yield from _leaves(each, (*path, place), is_renamed=is_renamed)
    else:
        yield path, is_renamed, value


def _is_nested(value: object) -> bool:
    """Of an entry of a list."""
    return isinstance(value, Mapping | torch.Tensor) or (isinstance(value, list) and any(map(_is_nested, value)))


def _child(holder: Any, key: str | int, value: Any, name: str, *, is_leaf: bool = False) -> Any:
    """What `holder` has at `key`, `value` if it has nothing yet."""
    if isinstance(holder, list) and isinstance(key, int) and 0 <= key <= len(holder):
        is_new = key == len(holder)
        if is_new:
            holder.append(value)
    elif isinstance(holder, dict) and isinstance(key, str):
        is_new = key not in holder
        holder.setdefault(key, value)
    else:
        raise _contradiction(name)
    if is_leaf and not is_new:
        raise _contradiction(name)
    return holder[key]


def _contradiction(name: str) -> InvalidInput:
    fix = "its path in the checkpoint contradicts another's; the checkpoint was written by something else"
    return InvalidInput(Problem(field="name", value=name, fix=fix))


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


_SETTINGS: Any = config  # torch installs its methods at run time, where no type checker sees them
_open_archive: Any = torch._C.PyTorchFileReader


def write_torch(source: Source, target: Path) -> None:
    """One dictionary, nested as it was, larger than memory if need be: torch writes the file with room for its
    tensors and nothing in it; then each tensor is put into its place. Raises as `source` does, and OSError.
    """
    contents = source.contents
    # Memory that is never touched is never taken, however large the tensors are.
    empty = {name: torch.empty(shape.sizes, dtype=shape.dtype) for name, shape in contents.tensors.items()}
    objects = {name: source.value(name) for name in contents.objects}
    state = nest({**empty, **objects}, contents.paths)
    names = {tensor.untyped_storage()._cdata: name for name, tensor in empty.items()}
    with fresh(target) as path:
        with _SETTINGS.patch({"save.compute_crc32": False}), torch.serialization.skip_data():
            torch.save(state, path)
        archive = _open_archive(str(path))
        with open(path, "r+b") as file:
            for number, storage in enumerate(_storages_in(state)):
                name = names.get(storage._cdata)
                file.seek(archive.get_record_offset(f"data/{number}"))
                file.write(_bytes_of(storage) if name is None else bytes_of(source.tensor(name)))
            file.flush()
            os.fsync(file.fileno())


def _storages_in(state: object) -> list[torch.UntypedStorage]:
    """Every storage once, in the order that torch.save numbers them."""
    order = _Order(io.BytesIO(), protocol=2)
    order.dump(state)
    return list(order.found.values())


class _Order(pickle.Pickler):
    """Pickles as torch.save does, and remembers what it meets."""

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.found: dict[int, torch.UntypedStorage] = {}

    def persistent_id(self, obj: Any) -> str | None:
        if not isinstance(obj, torch.storage.TypedStorage) and not torch.is_storage(obj):
            return None
        storage = obj._untyped_storage if isinstance(obj, torch.storage.TypedStorage) else obj
        self.found.setdefault(storage._cdata, storage)
        return str(storage._cdata)


def _bytes_of(storage: torch.UntypedStorage) -> memoryview:
    return bytes_of(torch.empty(0, dtype=torch.uint8).set_(storage))
