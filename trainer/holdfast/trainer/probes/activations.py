"""What goes into each module of a model and comes out of it, and which of it belongs to which position."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.trainer.probes.subject import tensors_in


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module, with copies of the numbers that went in and came out. `number` counts its calls."""

    name: str
    kind: str
    number: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.number


@contextmanager
def recorded(model: nn.Module) -> Iterator[list[ModuleCall]]:
    """The calls in the order in which they ended: a module comes after those inside it. Hooks are taken off again.

    Modules inside of a compiled one are not seen one by one.
    """
    calls: list[ModuleCall] = []
    entered: list[tuple[nn.Module, tuple[Tensor, ...]]] = []
    counts: Counter[str] = Counter()
    names = {id(module): name for name, module in model.named_modules()}

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        entered.append((module, _copied((args, kwargs))))

    def leave(module: nn.Module, _: Any, __: Any, output: Any) -> None:
        name, inside = names[id(module)], entered.pop()
        while inside[0] is not module:  # left by an exception, as activation checkpointing leaves a module early
            inside = entered.pop()
        calls.append(ModuleCall(name, type(module).__name__, counts[name], inside[1], _copied(output)))
        counts[name] += 1

    handles = []
    for module in model.modules():
        # Of the hooks before it the last one sees what the module gets; of those after it, too.
        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave, with_kwargs=True))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def dtypes_met(model: nn.Module) -> Iterator[set[torch.dtype]]:
    """The dtypes of what comes out of each module: under autocast narrower ones than at both ends of the model."""
    met: set[torch.dtype] = set()

    def leave(module: nn.Module, _: Any, output: Any) -> None:
        met.update(each.dtype for each in tensors_in(output) if each.is_floating_point())

    handles = [module.register_forward_hook(leave) for module in model.modules()]
    try:
        yield met
    finally:
        for handle in handles:
            handle.remove()


def _copied(value: Any) -> tuple[Tensor, ...]:
    """Copies, since what follows may write in place."""
    return tuple(each.detach().clone() for each in tensors_in(value))


@dataclass(frozen=True, slots=True)
class TimeLayout:
    """How tensors of `samples` with `steps` positions lie; time is dimension `time_dim` of the inputs."""

    samples: int
    steps: int
    time_dim: int

    def by_time(self, tensor: Tensor) -> Tensor | None:
        """T x everything else; None when no dimension is time.

        Known are B x T x ..., T x B x ..., (B T) x ..., B x heads x T x ... and (B heads) x T x ...; with sizes
        that are equal by chance the first of them that fits is taken, in the order of the inputs' own dimensions.
        """
        dims, shape = self._dims(tensor), tuple(tensor.shape)
        if dims:
            return _time_first(tensor, dims[0])
        if len(shape) > 1 and shape[0] == self.samples * self.steps:
            return _time_first(tensor.reshape(*self._sizes, *shape[1:]), self.time_dim)
        return None

    def is_plain(self, tensor: Tensor) -> bool:
        """Whether no second dimension of it could be time as well."""
        return len(set(self._dims(tensor))) < 2

    @property
    def _sizes(self) -> tuple[int, int]:
        return (self.samples, self.steps) if self.time_dim == 1 else (self.steps, self.samples)

    def _dims(self, tensor: Tensor) -> list[int]:
        """Which of its dimensions may be time, the likeliest first."""
        shape, (first, second) = tuple(tensor.shape), self._sizes
        fits = {
            self.time_dim: shape[:2] == (first, second),
            1 - self.time_dim: shape[:2] == (second, first),
        }
        dims = [dim for dim, fit in fits.items() if fit]
        if len(shape) > 2 and shape[0] == self.samples and shape[2] == self.steps:
            dims.append(2)
        if len(shape) > 2 and shape[1] == self.steps and shape[0] % self.samples == 0:
            dims.append(1)
        return dims


def _time_first(tensor: Tensor, dim: int) -> Tensor:
    moved = tensor.movedim(dim, 0)
    return moved.reshape(moved.shape[0], -1)
