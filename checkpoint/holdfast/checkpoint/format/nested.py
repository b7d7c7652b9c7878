"""Nested state under flat names, and the way back, which changes nothing.

A dictionary is nested, and so is a list with a tensor or a dictionary anywhere in it. All else is one object:
plain lists, tuples, empty dictionaries. Names are joined with dots; but for what is empty they are those that
torch.distributed.checkpoint gives. Keys that are no text become text in names; the outline has them as they are.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch

from holdfast.api.errors import InvalidInput, Problem

NamePath = tuple[str | int, ...]
"""How a name is nested: text is a key, a number a place in a list."""
Keys = list[tuple[NamePath, list[object]]]
"""As older checkpoints have them: the path of each dictionary with keys that are no text, and all its keys."""
Outline = dict[Any, Any]
"""The same nest with None in place of each value: its lists, and its dictionaries with their keys as they are, in
their order.
"""
_OF_KEYS: Final = frozenset(
    (str, int, float, bool, complex, bytes, type(None), torch.Size, torch.dtype, torch.device)
)
NUMBERS: Final = "?bhilqBHILQefdFD"
"""Those of NumPy that load without code, by its characters."""
_KEPT: Final = (OrderedDict, Counter)  # Kinds of dictionaries that load without code.
_CONTRADICTION = "its path in the checkpoint contradicts another's; the checkpoint was written by something else"


@dataclass(frozen=True, slots=True)
class Flat:
    """Values and paths by flat name, and the outline."""

    values: dict[str, object] = field(default_factory=dict)
    paths: dict[str, NamePath] = field(default_factory=dict)
    outline: Outline = field(default_factory=dict)

    def beside(self, other: "Flat") -> "Flat":
        """Both, of which no name is the other's."""
        return Flat(
            {**self.values, **other.values}, {**self.paths, **other.paths}, {**self.outline, **other.outline}
        )


def flatten(state: Mapping[Any, object]) -> Flat:
    """Raises InvalidInput when two values would get the same name, and for a key that cannot be stored."""
    flat = Flat()
    flat.outline.update(_outlined(state, (), flat))
    return flat


def joined(path: NamePath) -> str:
    """The flat name."""
    return ".".join(map(str, path))


def nest(values: Mapping[str, object], paths: Mapping[str, NamePath], keys: Keys | None = None) -> dict[Any, Any]:
    """The reverse, by paths alone; without `keys`, all keys are text. Raises InvalidInput when paths contradict
    each other.
    """
    root: dict[Any, Any] = {}
    for name, value in values.items():
        path = paths.get(name, (name,))
        holder: Any = root
        for key, below in (*pairwise(path), (path[-1], None)):
            found = value if below is None else [] if isinstance(below, int) else {}
            if isinstance(holder, list) and isinstance(key, int) and 0 <= key <= len(holder):
                fits = key == len(holder) or below is not None
                holder += [found] if key == len(holder) else []
            elif isinstance(holder, dict) and isinstance(key, str):
                fits = key not in holder or below is not None
                holder.setdefault(key, found)
            else:
                fits = False
            if not fits:
                raise InvalidInput(Problem(field="name", value=name, fix=_CONTRADICTION))
            holder = holder[key]
    # The innermost first: the way to it is still text.
    for where, originals in reversed(keys or []):
        holder = root
        for step in where:
            holder = holder[step]
        there = {key: holder[str(key)] for key in originals if str(key) in holder}
        holder.clear()
        holder.update(there)
    return root


def filled(outline: Any, value_of: Callable[[NamePath], object], way: NamePath = ()) -> Any:
    """The nest that has this outline, a part of a state that begins at `way`, of the values of each path."""
    if isinstance(outline, dict):
        whole = _empty(outline)
        whole.update({key: filled(below, value_of, (*way, str(key))) for key, below in outline.items()})
        return whole
    if isinstance(outline, list):
        return [filled(below, value_of, (*way, place)) for place, below in enumerate(outline)]
    return value_of(way)


def names_in(outline: Any, way: NamePath = ()) -> list[str]:
    """The flat names of all that it has, in its order."""
    names: list[str] = []

    def found(path: NamePath) -> None:
        names.append(joined(path))

    filled(outline, found, way)
    return names


def has_text_alone(outline: Any) -> bool:
    """Whether all its keys are text."""
    if isinstance(outline, dict):
        return all(isinstance(key, str) and has_text_alone(below) for key, below in outline.items())
    return not isinstance(outline, list) or all(map(has_text_alone, outline))


def _outlined(value: object, path: NamePath, flat: Flat) -> Any:
    """What has other keys is no nest, but an object with all that is in it."""
    if isinstance(value, Mapping) and (not path or (value and all(map(_can_be_key, value)))):
        outline = _empty(value)
        for key, each in value.items():
            if isinstance(key, str):
                key = str(key)  # the same key, whatever kind of text it is
            outline[key] = _outlined(each, (*path, str(key)), flat)
        return outline
    if isinstance(value, list) and _is_nested(value):
        return [_outlined(each, (*path, place), flat) for place, each in enumerate(value)]
    name = joined(path)
    if name in flat.values:
        fix = "rename one of the two that have this name when their keys are joined with dots"
        raise InvalidInput(Problem(field="name", value=name, fix=fix))
    flat.values[name], flat.paths[name] = value, path
    return None


def _empty(like: Mapping[Any, Any]) -> Any:
    return type(like)() if type(like) in _KEPT else {}


def _can_be_key(key: object) -> bool:
    if type(key) is tuple:
        return all(map(_can_be_key, key))
    is_number = isinstance(key, np.generic) and key.dtype.char in NUMBERS
    return type(key) in _OF_KEYS or is_number or (isinstance(key, str) and str(key) == key)


def _is_nested(value: object) -> bool:
    """Of an entry of a list."""
    return isinstance(value, Mapping | torch.Tensor) or (isinstance(value, list) and any(map(_is_nested, value)))
