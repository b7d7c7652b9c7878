"""Outer steps: groups train by themselves for a while, and then average how far they came.

What a group has changed since the last outer step is a gradient of its own; its mean over the groups is what an
outer optimizer, SGD with Nesterov momentum, steps with. Groups exchange what they would in one step, once in
`every`.

Source: DiLoCo, https://arxiv.org/abs/2311.08105, algorithm 1; 0.7 and 0.9 are what section 3 of it found best.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from holdfast.api.errors import InvalidInput, Problem
from holdfast.trainer.torchtensors import local_of


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
    """Where the parameters were after the last outer step, and its momentum: alike in all groups. It has a state
    of its own, to be saved with the model's: the parameters of `model` that train now, sharded as they are, in
    single precision at least.
    """

    def __init__(self, wanted: OuterStep, model: Module) -> None:
        self.wanted = wanted
        self._parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self._anchors = {
            name: each.detach().to(torch.promote_types(each.dtype, torch.float32), copy=True)
            for name, each in self._parameters.items()
        }
        self._momenta = {name: torch.zeros_like(each) for name, each in self._anchors.items()}
        names = {id(each): name for name, each in self._parameters.items()}
        self._names = [names.get(id(each)) for each in model.parameters()]

    def tensors(self) -> list[Tensor]:
        """What has to be copied to a group that comes back."""
        return [*self._anchors.values(), *self._momenta.values()]

    def state_dict(self) -> dict[str, Any]:
        return {"anchor": dict(self._anchors), "momentum": dict(self._momenta)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for mine, told in ((self._anchors, state["anchor"]), (self._momenta, state["momentum"])):
            for name, each in mine.items():
                if told[name] is not each:
                    each.copy_(told[name])

    def change(self, place: int) -> Tensor:
        """How far the model's parameter at `place` came, with the sign of a gradient. Raises InvalidInput for one
        that did not train when this was made.
        """
        name = self._names[place]
        if name is None:
            fix = "with outer steps, let the same parameters train from the start of a round to its end"
            raise InvalidInput(Problem("model", f"parameter {place} began to train", fix))
        return local_of(self._anchors[name]) - local_of(self._parameters[name])

    @torch.no_grad()
    def step(self, place: int, mean: Tensor) -> None:
        """The parameter at `place` goes from where it was as the mean of all groups says."""
        name, told = self._names[place], self.wanted
        assert name is not None, "nobody gives the change of what does not train"
        anchor, momentum = local_of(self._anchors[name]), local_of(self._momenta[name])
        gradient = mean.to(anchor.device, anchor.dtype).reshape(anchor.shape)
        momentum.mul_(told.momentum).add_(gradient)
        anchor.sub_(told.learning_rate * (gradient + told.momentum * momentum))
        local_of(self._parameters[name]).copy_(anchor)
