"""The learning rate of a training loop, cut where the round's directive says so, and as before after that.

A cut multiplies what the optimizer and its scheduler hold, once; when it is over they are divided again, which is
exact for powers of two and within a rounding elsewhere. In between they are saved as they are: from the step of a
state it is known which cuts are in it, and only what differs from the step that comes next is changed.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from operator import mul, truediv
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from holdfast.api.learningrate import LearningRateCut

# Where torch's optimizers and schedulers keep learning rates: in a parameter group, and in the scheduler itself,
# one for each group or one for all.
# Source: https://github.com/pytorch/pytorch/blob/main/torch/optim/lr_scheduler.py (OneCycleLR, CyclicLR,
# CosineAnnealingLR, ReduceLROnPlateau)
GROUP_KEYS = ("lr", "initial_lr", "max_lr", "min_lr")
SCHEDULER_KEYS = ("base_lrs", "max_lrs", "min_lrs", "eta_min")


class LearningRate:
    """Of `optimizer`, as `scheduler` (None: nobody) moves it."""

    def __init__(self, optimizer: Optimizer, scheduler: object | None) -> None:
        self._optimizer = optimizer
        self._schedulers = [] if scheduler is None else list(leaves(scheduler))
        self._cuts: tuple[LearningRateCut, ...] = ()
        self._held: set[int] = set()  # the places of those that it has now; two may be alike
        self._settled_until: float | None = math.inf  # the step up to which nothing changes; None: look

    @property
    def is_reachable(self) -> bool:
        """Whether what it is multiplied by lasts: not where a scheduler starts from rates that nobody can see."""
        return all(
            isinstance(each, ReduceLROnPlateau) or isinstance(getattr(each, "base_lrs", None), list)
            for each in self._schedulers
        )

    @property
    def factor(self) -> float:
        """What the cuts that it has in it come to: 1.0 where there is none."""
        return math.prod(self._cuts[place].scale for place in self._held)

    def go_on(self, cuts: Sequence[LearningRateCut], step: int, *, has_all: bool) -> None:
        """From a state saved after `step`, which has the cuts made before it in it; `has_all`: all of them.

        Nothing is changed before the next step: until then this is the state of `step`.
        """
        self._cuts = tuple(cuts)
        self._held = {
            place for place, cut in enumerate(cuts) if cut.is_in(step) or (has_all and cut.holds_at(step))
        }
        self._settled_until = None if cuts else math.inf

    def before(self, step: int) -> None:
        """`step` comes next: what is for it is cut, what is over is as before."""
        if self._settled_until is not None and step <= self._settled_until:
            return
        for place, cut in enumerate(self._cuts):
            if cut.holds_at(step) and place not in self._held:
                self._held.add(place)
                self._change(mul, cut.scale)
            elif place in self._held and not cut.holds_at(step):
                self._held.remove(place)
                self._change(truediv, cut.scale)
        ends = (self._cuts[place].until for place in self._held)
        self._settled_until = min((end for end in ends if end is not None), default=math.inf)

    def _change(self, by: Callable[[Any, float], Any], scale: float) -> None:
        """Every learning rate, also those that a scheduler starts from. Groups may share one tensor."""
        changed: list[torch.Tensor] = []
        for group in self._optimizer.param_groups:
            for key in GROUP_KEYS:
                if isinstance(rate := group.get(key), torch.Tensor):
                    if not any(rate is each for each in changed):
                        rate.copy_(by(rate, scale))
                        changed.append(rate)
                elif rate is not None:
                    group[key] = by(rate, scale)
        for each in self._schedulers:
            for key in SCHEDULER_KEYS:
                match getattr(each, key, None):
                    case list() as rates:
                        rates[:] = [by(rate, scale) for rate in rates]
                    case int() | float() as rate:
                        setattr(each, key, by(rate, scale))


def leaves(scheduler: object) -> Iterator[object]:
    """The schedulers that `scheduler` is made of (SequentialLR, ChainedScheduler), else itself."""
    inner = getattr(scheduler, "_schedulers", None)
    if not isinstance(inner, (list, tuple)):
        yield scheduler
        return
    for each in inner:
        yield from leaves(each)
