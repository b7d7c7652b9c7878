"""Whether an object can be stored: whether it is made of what a restore loads without running code.

Pickling shows what an object is made of. Each kind is tried once; after that a look costs as much as its pickle,
without the content of tensors.
"""

import pickle
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final

import torch

from holdfast.checkpoint.format import archive

_PLAIN: Final = frozenset((type(None), bool, int, float, str, bytes))
_FIX: Final = (
    "give it a state_dict() of plain values and tensors: list() of a deque or a named tuple, .value of an enum, "
    "str() of a kind of text"
)
_SHOWN: Final = 3


class Storable:
    """Belongs to the training thread."""

    def __init__(self) -> None:
        self._known: set[object] = set()

    def fault(self, objects: Mapping[str, object]) -> tuple[str, str, str] | None:
        """Field, value and fix of the first that cannot be; None where all can."""
        for name, value in objects.items():
            if not _is_plain(value) and (found := self._fault(value)):
                return name, found, _FIX
        return None

    def _fault(self, value: object) -> str:
        if isinstance(value, archive.Packed):
            return ""
        looker = _Looker()
        try:
            looker.dump(value)
            if looker.kinds <= self._known:
                return ""
            archive.unpack_object(archive.pack_object(value))
        except Exception as error:
            names = sorted(filter(None, map(_name_of, looker.kinds - self._known)))
            shown = ", ".join(dict.fromkeys(names[:_SHOWN]))
            return f"holds what cannot be loaded without running code: {shown or error}"
        self._known |= looker.kinds
        return ""


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return type(value) in (list, tuple) and _PLAIN.issuperset(map(type, value))
    return type(value) in _PLAIN


class _Nowhere:
    def write(self, words: bytes) -> int:
        return len(words)


class _Looker(pickle.Pickler):
    """`kinds` are those of all that is not plain: of functions and classes they themselves, of tensors what
    decides how they are stored.
    """

    def __init__(self) -> None:
        super().__init__(_Nowhere(), torch.serialization.DEFAULT_PROTOCOL)  # newer ones have more without its kind
        self.kinds: set[object] = set()

    def reducer_override(self, value: Any) -> Any:
        if value is _nothing:
            return NotImplemented
        if isinstance(value, torch.Tensor):
            self.kinds.add((type(value), value.layout, value.dtype, value.is_quantized, value.is_nested))
            return _nothing, ()
        is_itself = isinstance(value, type | FunctionType | BuiltinFunctionType)
        self.kinds.add(value if is_itself else type(value))
        return NotImplemented


def _nothing() -> None:
    """Never called: nothing of this is unpickled."""


def _name_of(kind: object) -> str:
    if isinstance(kind, tuple):
        return " ".join(str(each).removeprefix("torch.") for each in kind[1:3]) + " tensor"
    module, name = getattr(kind, "__module__", ""), getattr(kind, "__qualname__", "")
    return f"{module}.{name}" if module else name
