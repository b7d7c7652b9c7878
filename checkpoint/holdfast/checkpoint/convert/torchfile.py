"""Files of torch.save, read and written: a dictionary, nested as it likes, under flat names.

For how names are nested see `format/nested.py`. What a checkpoint of ours has as one object stays one.
"""

import io
import os
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.serialization import config

from holdfast.api.errors import Damaged, InvalidInput, Problem
from holdfast.checkpoint.capture.state import objects_among
from holdfast.checkpoint.convert.content import Contents, Shape, Source, bytes_of, fresh
from holdfast.checkpoint.errors import Unfit
from holdfast.checkpoint.format.archive import open_archive
from holdfast.checkpoint.format.nested import flatten, has_text_alone, nest

_RENAMED = "keys that are numbers have become text, as torch.distributed.checkpoint does it"


class TorchSource:
    """Raises Unfit when it needs code to be loaded, Damaged when it is no such file, InvalidInput when it holds
    no dictionary.
    """

    def __init__(self, path: Path) -> None:
        try:
            with warnings.catch_warnings():
                # Whether a sparse tensor is checked is said by torch 2.11 where it is not, by 2.14 where it is.
                warnings.filterwarnings("ignore", r"(?i).*sparse (tensor )?invariant")
                try:  # Mapped, where the file is not of the oldest kind: a tensor takes memory while it is copied.
                    state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
                except RuntimeError:
                    state = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise Unfit(f"{path} is not made of plain values and tensors: {error}") from error
        except (RuntimeError, EOFError) as error:
            raise Damaged(f"{path} is no whole file of torch.save: {error}") from error
        if not isinstance(state, Mapping):
            fix = "save a dictionary: what has no name cannot be converted"
            raise InvalidInput(Problem(field="source", value=str(path), fix=fix))
        whole = objects_among(key for key in state if isinstance(key, str))
        flat = flatten({key: value for key, value in state.items() if key not in whole})
        self._values = {**flat.values, **{name: state[name] for name in whole}}
        tensors = {
            name: Shape(value.dtype, tuple(value.shape))
            for name, value in self._values.items()
            # Others are stored as the objects they are.
            if type(value) in (torch.Tensor, torch.nn.Parameter)
            and isinstance(value, torch.Tensor)
            and value.layout is torch.strided
            and not value.is_quantized
        }
        objects = tuple(name for name in self._values if name not in tensors)
        self.contents = Contents(
            tensors, objects, flat.paths, remarks=() if has_text_alone(flat.outline) else (_RENAMED,)
        )

    def tensor(self, name: str) -> torch.Tensor:
        value = self._values[name]
        assert isinstance(value, torch.Tensor)
        return value.detach().resolve_conj().resolve_neg().contiguous()

    def value(self, name: str) -> object:
        return self._values[name]


_SETTINGS: Any = config  # torch installs its methods at run time, where no type checker sees them


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
        archive, order = open_archive(str(path)), _Order(io.BytesIO(), protocol=2)
        order.dump(state)
        with open(path, "r+b") as file:
            for number, storage in enumerate(order.found.values()):
                name = names.get(storage._cdata)
                whole = torch.empty(0, dtype=torch.uint8).set_(storage) if name is None else source.tensor(name)
                file.seek(archive.get_record_offset(f"data/{number}"))
                file.write(bytes_of(whole))
            file.flush()
            os.fsync(file.fileno())


class _Order(pickle.Pickler):
    """Pickles as torch.save does, and remembers every storage, once, in the order that torch.save numbers them."""

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.found: dict[int, torch.UntypedStorage] = {}

    def persistent_id(self, obj: Any) -> str | None:
        storage = obj._untyped_storage if isinstance(obj, torch.storage.TypedStorage) else obj
        if not isinstance(storage, torch.UntypedStorage):
            return None
        self.found.setdefault(storage._cdata, storage)
        return str(storage._cdata)
