"""Contestants taking turns, each round in another order, the same on all ranks."""

import random
from collections.abc import Callable, Mapping

Samples = dict[str, list[float]]
Turn = Callable[[], Mapping[str, float]]
"""One go of a contestant: what it measured, by name."""


def take_turns(turns: Mapping[str, Turn], *, rounds: int) -> Samples:
    """The samples of `rounds` rounds. What a first round before them measured is under `first: `."""
    samples: Samples = {}
    for number in range(rounds + 1):
        order = sorted(turns)
        random.Random(number).shuffle(order)
        for name in order:
            for measure, value in turns[name]().items():
                samples.setdefault(measure if number else f"first: {measure}", []).append(value)
    return samples
