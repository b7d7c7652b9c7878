"""Where two checkpoints differ, whatever their formats and layouts."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch

from holdfast.checkpoint.convert.content import Source


@dataclass(frozen=True, slots=True)
class Difference:
    """Of one name. `what` says it in words. Of tensors that differ in values alone, `count` is how many elements
    do, `first` where the first of them is, `largest` the greatest absolute difference; None where either is not a
    number, or the dtype has no order.
    """

    name: str
    what: str
    count: int | None = None
    first: tuple[int, ...] | None = None
    largest: float | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """`equal` is how many names hold the same, bit for bit."""

    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    differences: tuple[Difference, ...]
    equal: int

    @property
    def is_equal(self) -> bool:
        return not (self.only_in_a or self.only_in_b or self.differences)


def compare(a: Source, b: Source, *, are_equal: Callable[[str], bool] = lambda name: False) -> Compared:
    """Name by name, so that no more than one tensor of each is in memory. `are_equal` says of a name that both
    have whether it is known to be the same without a look. Raises as the sources do.
    """
    ours = [*a.contents.tensors, *a.contents.objects]
    theirs = [*b.contents.tensors, *b.contents.objects]
    common = set(ours).intersection(theirs)
    found = (_difference(name, a, b) for name in ours if name in common and not are_equal(name))
    differences = tuple(each for each in found if each is not None)
    return Compared(
        only_in_a=tuple(name for name in ours if name not in common),
        only_in_b=tuple(name for name in theirs if name not in common),
        differences=differences,
        equal=len(common) - len(differences),
    )


def _difference(name: str, a: Source, b: Source) -> Difference | None:
    """None when every bit is the same, so NaN equals NaN and 0.0 is not -0.0."""
    shapes = a.contents.tensors.get(name), b.contents.tensors.get(name)
    if shapes[0] != shapes[1]:
        first, second = ("an object" if shape is None else str(shape) for shape in shapes)
        return Difference(name, f"{first} in the one, {second} in the other")
    if shapes[0] is None:
        return None if _is_same(a.value(name), b.value(name)) else Difference(name, "the objects differ")
    ours, theirs = a.tensor(name), b.tensor(name)
    raw_ours, raw_theirs = _raw(ours), _raw(theirs)
    if torch.equal(raw_ours, raw_theirs):
        return None
    width = ours.dtype.itemsize
    differs = (raw_ours.reshape(-1, width) != raw_theirs.reshape(-1, width)).any(dim=1)
    place = differs.to(torch.uint8).argmax()
    indices = tuple(int(each) for each in torch.unravel_index(place, ours.shape))
    largest = None
    # Of what differs only: as few elements as that are made wide.
    wide = torch.complex128 if ours.dtype.is_complex else torch.float64
    with suppress(RuntimeError, NotImplementedError):  # Packed dtypes have no numbers torch could take apart.
        gaps = (ours.reshape(-1)[differs].to(wide) - theirs.reshape(-1)[differs].to(wide)).abs()
        largest = None if bool(gaps.isnan().any()) else float(gaps.max())
    return Difference(name, "the values differ", int(differs.sum()), indices, largest)


def _is_same(ours: object, theirs: object) -> bool:
    """Bit for bit, and type for type."""
    if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        if (ours.dtype, ours.shape, ours.layout) != (theirs.dtype, theirs.shape, theirs.layout):
            return False
        if ours.layout is not torch.strided or ours.is_quantized:
            return torch.equal(ours.to_dense(), theirs.to_dense())
        return torch.equal(_raw(ours), _raw(theirs))
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return ours.keys() == theirs.keys() and all(_is_same(ours[key], theirs[key]) for key in ours)
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(_is_same, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, float):
        return ours.hex() == theirs.hex()
    return bool(ours == theirs)


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """The content as bytes."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
