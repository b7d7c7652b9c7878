"""A router's load, as a script tells of it: how even it is, how many tokens are dropped, how many experts idle.

watch = RoutingWatch()
watch.update("blocks.3.moe", torch.bincount(experts, minlength=64), dropped=lost)   # at every step
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from holdfast.api.audit import Probe, ProbeAnswer, Soundness
from holdfast.api.errors import InvalidInput, Problem

DROPPED_MAX: Final = 0.01
"""Share of tokens. Source: https://arxiv.org/abs/2101.03961 (typically below 1 %)."""
VIOLATION_MAX: Final = 1.0
"""The busiest expert's load beyond the mean, in means. Balanced runs stay well below, unbalanced ones far beyond.
Source: https://arxiv.org/abs/2408.15664 (MaxVio)."""
TOKENS_MIN: Final = 10.0
"""Tokens an expert would get on the mean before one without any is called dead."""
UNIT: Final = "loads of the busiest expert beyond the mean"


@dataclass(slots=True)
class _Layer:
    """Sums of one router, where the counts are: nothing is waited for."""

    counts: Tensor
    dropped: Tensor
    updates: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """What one router did since the watch was made: tokens by expert, and what was dropped."""

    counts: tuple[float, ...]
    dropped: float
    updates: int

    @property
    def violation(self) -> float:
        """The busiest expert's load beyond the mean, in means; 0 is even, the number of experts - 1 the most."""
        mean = sum(self.counts) / len(self.counts)
        return max(self.counts) / mean - 1.0 if mean else 0.0

    @property
    def dropped_share(self) -> float:
        """Of the tokens that were routed, those that no expert took."""
        routed = sum(self.counts) + self.dropped
        return self.dropped / routed if routed else 0.0

    @property
    def dead(self) -> int:
        """Experts that got nothing although enough was there for each."""
        return self.counts.count(0.0) if sum(self.counts) >= TOKENS_MIN * len(self.counts) else 0


class RoutingWatch:
    """Tokens that each expert took and those that none took, by layer, while a script trains.

    `update` adds tensors on the device they are on and waits for nothing; a few microseconds.
    """

    def __init__(self) -> None:
        self._layers: dict[str, _Layer] = {}

    def update(self, layer: str, counts: Tensor | Sequence[float], dropped: Tensor | float = 0) -> None:
        """`counts` are the tokens that each expert took at this step, `dropped` those that found no place: of this
        rank, or of all ranks together.

        Raises InvalidInput when the number of experts is none, or another one than before.
        """
        taken = torch.as_tensor(counts).detach()
        there = self._layers.get(layer)
        if taken.ndim != 1 or not len(taken) or (there is not None and len(taken) != len(there.counts)):
            fix = (
                "give one number for each expert" if there is None else f"{layer} has {len(there.counts)} experts"
            )
            raise InvalidInput(Problem("counts", tuple(taken.shape), fix))
        if there is None:
            zeros = torch.zeros_like(taken, dtype=torch.float64)
            there = self._layers[layer] = _Layer(zeros, zeros.new_zeros(()))
        there.counts += taken
        there.dropped += dropped.detach().sum() if isinstance(dropped, Tensor) else dropped
        there.updates += 1

    def loads(self) -> dict[str, Load]:
        """What was summed so far, by layer. Waits for the device."""
        return {
            name: Load(tuple(each.counts.tolist()), float(each.dropped), each.updates)
            for name, each in self._layers.items()
        }

    def answers(self) -> tuple[ProbeAnswer, ...]:
        """One answer for each suspect layer; else one, of the layer whose load is least even."""
        loads = self.loads()
        if not any(sum(each.counts) + each.dropped for each in loads.values()):
            says = "no token was told of"
            change = "call update with the tokens of each expert at each step"
            return (ProbeAnswer.unknown(Probe.ROUTING, says, change),)
        told = [_answer(name, each) for name, each in loads.items()]
        suspect = tuple(each for each in told if each.verdict is Soundness.SUSPECT)
        return suspect or (max(told, key=lambda each: each.figure or 0.0),)


def _answer(name: str, load: Load) -> ProbeAnswer:
    change = ""
    if load.dropped_share > DROPPED_MAX:
        change = "raise the capacity, or balance the load: dropped tokens get no gradient from their experts"
    elif load.dead:
        change = (
            "raise the balance loss or bias, or start the router smaller: a dead expert learns nothing any more"
        )
    elif load.violation > VIOLATION_MAX:
        change = "raise the balance loss, or balance by a bias per expert: the busiest one is waited for"
    says = (
        f"{load.dropped_share:.2%} of the tokens dropped, {load.dead} of {len(load.counts)} experts got nothing, "
        f"in {load.updates} updates"
    )
    return ProbeAnswer(
        probe=Probe.ROUTING,
        verdict=Soundness.SUSPECT if change else Soundness.SOUND,
        figure=load.violation,
        unit=UNIT,
        says=says,
        where=name,
        change=change,
    )
