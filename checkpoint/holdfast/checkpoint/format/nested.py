"""Nested state under flat names, and the way back, which changes nothing.

A dictionary is nested, and so is a list with a tensor or a dictionary anywhere in it. All else is one object:
plain lists, tuples, empty dictionaries. Names are joined with dots; but for what is empty they are those that
torch.distributed.checkpoint gives. Keys that are no text become text in names; `keys` says what they were.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from holdfast.api.errors import InvalidInput, Problem

NamePath = tuple[str | int, ...]
"""How a name is nested: text is a key, a number a place in a list."""
Keys = list[tuple[NamePath, list[object]]]
_PLAIN = (type(None), bool, int, float, str)
_CONTRADICTION = "its path in the checkpoint contradicts another's; the checkpoint was written by something else"


@dataclass(frozen=True, slots=True)
class Flat:
    """Values and paths by flat name. `keys` has the path of each dictionary with keys that are no text, and all
    its keys in their order; what a dictionary is in comes before it.
    """

    values: dict[str, object] = field(default_factory=dict)
    paths: dict[str, NamePath] = field(default_factory=dict)
    keys: Keys = field(default_factory=list)


def flatten(state: Mapping[Any, object]) -> Flat:
    """Raises InvalidInput when two values would get the same name."""
    flat = Flat()
    for path, value in _leaves(state, (), flat.keys):
        name = joined(path)
        if name in flat.values:
            fix = "rename one of the two that have this name when their keys are joined with dots"
            raise InvalidInput(Problem(field="name", value=name, fix=fix))
        flat.values[name], flat.paths[name] = value, path
    return flat


def joined(path: NamePath) -> str:
    """The flat name."""
    return ".".join(map(str, path))


def nest(values: Mapping[str, object], paths: Mapping[str, NamePath], keys: Keys | None = None) -> dict[Any, Any]:
    """The reverse; without `keys`, all keys are text. Raises InvalidInput when paths contradict each other."""
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


def _leaves(value: object, path: NamePath, keys: Keys) -> Iterator[tuple[NamePath, object]]:
    if isinstance(value, Mapping) and (value or not path):
        if not all(isinstance(key, str) for key in value) and all(isinstance(key, _PLAIN) for key in value):
            keys.append((path, list(value)))
        for key, each in value.items():
            yield from _leaves(each, (*path, str(key)), keys)
    elif isinstance(value, list) and _is_nested(value):
        for place, each in enumerate(value):
            yield from _leaves(each, (*path, place), keys)
    else:
        yield path, value


def _is_nested(value: object) -> bool:
    """Of an entry of a list."""
    return isinstance(value, Mapping | torch.Tensor) or (isinstance(value, list) and any(map(_is_nested, value)))
