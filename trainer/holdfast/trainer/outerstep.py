"""Outer steps: groups train by themselves for a while, and then average how far they came.

What a group has changed since the last outer step is a gradient of its own; its mean over the groups is what an
outer optimizer, SGD with Nesterov momentum, steps with. Groups exchange what they would in one step, once in
`every`.

Source: DiLoCo, https://arxiv.org/abs/2311.08105, algorithm 1; 0.7 and 0.9 are what section 3 of it found best.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.api.errors import InvalidInput, Problem


@dataclass(frozen=True, slots=True)
class OuterStep:
    """After every `every` steps. Raises InvalidInput where a value cannot be one."""

    every: int
    learning_rate: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InvalidInput(
                Problem("every", self.every, "give the steps from one outer step to the next, 1 or more")
            )
        if not 0.0 < self.learning_rate < float("inf"):
            raise InvalidInput(Problem("learning_rate", self.learning_rate, "give a number above 0, such as 0.7"))
        if not 0.0 <= self.momentum < 1.0:
            raise InvalidInput(Problem("momentum", self.momentum, "give a number from 0 up to, but not, 1"))


class OuterState:
    """Where the parameters were after the last outer step, and its momentum: alike in all groups."""

    def __init__(self, wanted: OuterStep, held: Sequence[Tensor]) -> None:
        """`held` are this rank's parameters as they lie in memory; they are changed in place."""
        self.wanted, self._held = wanted, held
        self._anchors = [each.clone() for each in held]
        self._momenta = [torch.zeros_like(each) for each in held]

    def tensors(self) -> list[Tensor]:
        """What has to be copied to a group that comes back."""
        return [*self._anchors, *self._momenta]

    def change(self, place: int) -> Tensor:
        """How far the parameter at `place` came, with the sign of a gradient."""
        return self._anchors[place] - self._held[place]

    @torch.no_grad()
    def step(self, place: int, mean: Tensor) -> None:
        """The parameter at `place` goes from where it was as the mean of all groups says."""
        anchor, momentum, told = self._anchors[place], self._momenta[place], self.wanted
        gradient = mean.to(anchor.device, anchor.dtype).reshape(anchor.shape)
        momentum.mul_(told.momentum).add_(gradient)
        anchor.sub_(told.learning_rate * (gradient + told.momentum * momentum))
        self._held[place].copy_(anchor)
