"""Parameters at rest: between the end of a step and the next update nothing may write to them.

What is in memory then is read once as the pause begins and once as it ends, and both must sum up alike. The sum is
over words modulo 2**64, so it sees every change within one word, which is what memory does. Forward and backward
lie in the pause: where every pause is looked at, there is hardly a moment in which a bit can flip unseen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from holdfast.trainer.hostcopy import HostCopy, Stopwatch
from holdfast.trainer.torchtensors import local_of

_WORDS: Final = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))
# Smaller tensors are put together before they are summed: starting a sum takes longer than reading them.
_SMALL_BYTES: Final = 1 << 20
_TOGETHER_MAX: Final = 64  # bounds what that needs to 64 MiB


class Change(IntEnum):
    """What became of the parameters in a pause.

    One bit that flips changes one sum by a power of two, and that is what memory does. Whoever writes to
    parameters on purpose, where torch does not count it (through `.data`, in a library of its own), changes many
    words.
    """

    NONE = 0
    FLIP = 1
    MORE = 2


@dataclass(slots=True)
class Look:
    """The pause after `step` has ended: how the parameters changed in it, as a `Change`, and what looking took."""

    step: int
    changed: HostCopy
    watch: Stopwatch


class Pauses:
    """Looks at the pauses of one model, on one device, until it is closed.

    A pause ends as any optimizer begins to update the model. One in which the script itself wrote to a parameter,
    or put it elsewhere, says nothing: torch counts what is written on purpose.
    """

    def __init__(self, model: Module, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._open: _Content | None = None
        self._step = 0
        self._watch = Stopwatch(device)
        self._ended: list[Look] = []
        self._error: Exception | None = None
        self._handle = register_optimizer_step_pre_hook(self._before_update)

    def begin(self, step: int) -> None:
        """The pause after `step` begins now. Raises what went wrong at the end of the one before."""
        if self._error is not None:
            raise self._error
        self._watch = Stopwatch(self._device)
        with self._watch:
            held = [each for each in self._model.parameters() if local_of(each).device == self._device]
            self._open, self._step = _Content(held), step

    def skip(self) -> None:
        """The pause that begins now is not looked at."""
        self._open = None

    def ended(self) -> list[Look]:
        """The looks whose result is there, oldest first, each once. Never waits."""
        there = 0
        while there < len(self._ended) and self._ended[there].changed.is_there():
            there += 1
        told, self._ended = self._ended[:there], self._ended[there:]
        return told

    @property
    def under_way(self) -> int:
        """How many results are not there yet, or were not taken."""
        return len(self._ended)

    @property
    def oldest_under_way(self) -> int | None:
        """After which step the oldest of those pauses began; None: there is none."""
        return self._ended[0].step if self._ended else None

    def close(self) -> None:
        """Look no more, and let go of the model."""
        self._handle.remove()
        self._open = None

    def _before_update(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return  # An update that is compiled as a whole has no place to look from.
        content = self._open
        if content is None or not content.is_updated_by(optimizer):
            return
        self._open = None
        try:
            if content.is_in_place():
                with self._watch:
                    changed = HostCopy(content.change())
                self._ended.append(Look(self._step, changed, self._watch))
        except Exception as error:  # the update goes on
            self._error = error


class _Content:
    """What some parameters hold at one moment."""

    @torch.no_grad()
    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._parameters = tuple(parameters)
        self._ids = {id(each) for each in parameters}
        self._marks = self._marks_now()
        self._words = [words for each in parameters if (words := _words(local_of(each))).numel()]
        self._sums = _sums(self._words)

    def is_updated_by(self, optimizer: Optimizer) -> bool:
        return any(id(each) in self._ids for group in optimizer.param_groups for each in group["params"])

    def is_in_place(self) -> bool:
        """Whether all of it lies where it did, and was not written to by anybody who says so."""
        return self._marks_now() == self._marks

    @torch.no_grad()
    def change(self) -> Tensor:
        """What it has become by now: a `Change`, as one number on the device."""
        by = _sums(self._words) - self._sums
        count = (by != 0).sum()
        size = by.sum().abs()  # of the sign bit it stays negative, and one bit all the same
        is_flip = (count == 1) & ((size & (size - 1)) == 0)
        return torch.where(is_flip, int(Change.FLIP), torch.where(count == 0, int(Change.NONE), int(Change.MORE)))

    def _marks_now(self) -> list[tuple[int, int, int, int]]:
        """Where each parameter lies and how often it was written to, by itself and as a local part."""
        both = [(each, local_of(each)) for each in self._parameters]
        return [
            (local.data_ptr(), local.untyped_storage().nbytes(), parameter._version, local._version)
            for parameter, local in both
        ]


def _words(values: Tensor) -> Tensor:
    """The bits of a tensor as whole numbers, sharing its memory: as a vector of the largest words that fill it."""
    if not values.is_contiguous():
        return values.view(dict(_WORDS)[values.element_size()])  # the order of words does not matter for a sum
    octets = values.view(-1).view(torch.uint8)
    place = octets.data_ptr() | octets.numel()
    return octets.view(next(dtype for size, dtype in _WORDS if place % size == 0))


def _sums(words: Sequence[Tensor]) -> Tensor:
    """The sums of all words modulo 2**64, of small tensors together; a vector on their device."""
    sums, together = [], dict[torch.dtype, list[Tensor]]()
    for each in words:
        if each.dim() > 1 or each.numel() * each.element_size() > _SMALL_BYTES:
            sums.append(each.sum(dtype=torch.int64))
            continue
        alike = together.setdefault(each.dtype, [])
        alike.append(each)
        if len(alike) == _TOGETHER_MAX:
            sums.append(torch.cat(together.pop(each.dtype)).sum(dtype=torch.int64))
    sums += [torch.cat(alike).sum(dtype=torch.int64) for alike in together.values()]
    return torch.stack(sums) if sums else torch.zeros(1, dtype=torch.int64)
