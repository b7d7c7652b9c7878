"""Nested state to flat names and back, so that the way there and back changes nothing.

A dictionary is nested, and so is a list with a tensor or a dictionary anywhere in it. All else is one object:
plain lists, tuples, empty dictionaries. Names are joined with dots. But for what is empty, these are the names
that torch.distributed.checkpoint gives.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.convert.content import Path


def flatten(state: Mapping[Any, object]) -> tuple[dict[str, object], dict[str, Path], bool]:
    """The values and paths by flat name, and whether any key was not text and has become it.

    Raises InvalidInput when two values would get the same name.
    """
    values: dict[str, object] = {}
    paths: dict[str, Path] = {}
    has_renamed = False
    for path, is_renamed, value in _leaves(state, (), is_renamed=False):
        name = ".".join(map(str, path))
        if name in values:
            fix = "rename one of the two that have this name when their keys are joined with dots"
            raise InvalidInput(Problem(field="name", value=name, fix=fix))
        values[name], paths[name] = value, path
        has_renamed = has_renamed or is_renamed
    return values, paths, has_renamed


def nest(values: Mapping[str, object], paths: Mapping[str, Path]) -> dict[str, Any]:
    """The reverse: numbers in paths are places in lists. Raises InvalidInput when paths contradict each other."""
    root: dict[str, Any] = {}
    for name, value in values.items():
        path = paths.get(name, (name,))
        holder: Any = root
        for key, below in pairwise(path):
            holder = _child(holder, key, [] if isinstance(below, int) else {}, name)
        _child(holder, path[-1], value, name, is_leaf=True)
    return root


def _leaves(value: object, path: Path, *, is_renamed: bool) -> Iterator[tuple[Path, bool, object]]:
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
