"""What goes into each module of a model and comes out of it, and which of it belongs to which position."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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
        shape, samples, steps = tuple(tensor.shape), self.samples, self.steps
        first, second = (samples, steps) if self.time_dim == 1 else (steps, samples)
        if shape[:2] == (first, second):
            return _time_first(tensor, self.time_dim)
        if shape[:2] == (second, first):
            return _time_first(tensor, 1 - self.time_dim)
        if len(shape) > 1 and shape[0] == samples * steps:
            return _time_first(tensor.reshape(first, second, *shape[1:]), self.time_dim)
        if len(shape) > 2 and shape[0] == samples and shape[2] == steps:
            return _time_first(tensor, 2)
        if len(shape) > 2 and shape[1] == steps and shape[0] % samples == 0:
            return _time_first(tensor, 1)
        return None


def _time_first(tensor: Tensor, dim: int) -> Tensor:
    moved = tensor.movedim(dim, 0)
    return moved.reshape(moved.shape[0], -1)
