"""Writing a file of torch.save that is larger than memory.

torch writes the file with room for its tensors and nothing in it; then each tensor is put into its place.
"""

import io
import os
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.utils.serialization import config

from holdfast.checkpoint.convert.content import Source, bytes_of
from holdfast.checkpoint.convert.fresh import fresh
from holdfast.checkpoint.convert.nesting import nest

_SETTINGS: Any = config  # torch installs its methods at run time, where no type checker sees them
_open_archive: Any = torch._C.PyTorchFileReader


def write_torch(source: Source, target: Path) -> None:
    """One dictionary, nested as it was. Raises as `source` does, and OSError."""
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
