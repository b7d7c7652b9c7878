"""A part of a checkpoint, as a checkpoint."""

from dataclasses import replace

import torch

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.convert.content import Contents, Source


class Selection:
    """What of `source` begins with `prefix`, under names without it, and without objects if `tensors_only`.

    `left_out` are the objects that went for that. Raises InvalidInput when nothing has the prefix.
    """

    def __init__(self, source: Source, *, prefix: str = "", tensors_only: bool = False) -> None:
        self._source = source
        whole = source.contents
        self._names = {
            name.removeprefix(prefix): name for name in (*whole.tensors, *whole.objects) if name.startswith(prefix)
        }
        if not self._names and prefix:
            fix = "nothing begins with that; `holdfast checkpoint show` lists the names"
            raise InvalidInput(Problem(field="--select", value=prefix, fix=fix))
        objects = tuple(name for name, old in self._names.items() if old in set(whole.objects))
        self.left_out = objects if tensors_only else ()
        self.contents: Contents = replace(
            whole,
            tensors={name: whole.tensors[old] for name, old in self._names.items() if old in whole.tensors},
            objects=() if tensors_only else objects,
            paths={name: _without(prefix, old, whole) for name, old in self._names.items()},
        )

    def tensor(self, name: str) -> torch.Tensor:
        return self._source.tensor(self._names[name])

    def value(self, name: str) -> object:
        return self._source.value(self._names[name])


def _without(prefix: str, name: str, contents: Contents) -> tuple[str | int, ...]:
    """The path of `name` below the prefix; flat where the prefix ends within a part of it."""
    path = contents.path_of(name)
    for depth in range(len(path)):
        if "".join(f"{part}." for part in path[:depth]) == prefix and isinstance(path[depth], str):
            return path[depth:]
    return (name.removeprefix(prefix),)
