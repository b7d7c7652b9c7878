"""Which saved group's settings a parameter group has back: those of its parameters, whatever its number.

A group keeps its own parameters. Where they were is known once the saved lists were read, so all saved groups are
read, beside the state; they are small.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from holdfast.checkpoint.capture import groups
from holdfast.checkpoint.capture.shard import Shard
from holdfast.checkpoint.errors import Unfit
from holdfast.checkpoint.restore.strip import Target

Place = Shard | tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Regrouping:
    """`members` are the lists of this rank, `own` the places of all else that its groups have; `lists` and `saved`
    are those of the checkpoint, to be read.
    """

    members: dict[str, Sequence[str]] = field(default_factory=dict)
    own: dict[str, Place] = field(default_factory=dict)
    lists: dict[str, Target] = field(default_factory=dict)
    saved: dict[str, Target | torch.Tensor] = field(default_factory=dict)

    def settle(self, unpack: Callable[[str, Target], object]) -> list[tuple[Place, object]]:
        """Where what belongs, once all was read. Raises Unfit when parameters that are in one group were saved in
        several that differ, or in one that has not got a setting.
        """
        # Each parameter with the number of the group it was saved in.
        homes: dict[str, str] = {}
        for name, target in self.lists.items():
            parameters = unpack(name, target)
            if isinstance(parameters, list | tuple):
                homes |= dict.fromkeys(parameters, groups.number_of(name))
        sources = {
            groups.number_of(name): list(dict.fromkeys(homes[each] for each in parameters if each in homes))
            for name, parameters in self.members.items()
        }
        values = {
            name: unpack(name, each) if isinstance(each, Target) else each for name, each in self.saved.items()
        }
        found = []
        for name, place in self.own.items():
            number = groups.number_of(name)
            # Where nobody has saved the list of another stage of a pipeline, there is only the number to go by.
            first, *others = (groups.named_in(source, name) for source in sources.get(number) or [number])
            for each in (first, *others):
                if each not in values:
                    raise Unfit(f"{name}: its parameters were saved in a group without it, there is no {each}")
            value, one = values[first], groups.as_text(values[first])
            for other in others:
                two = groups.as_text(values[other])
                if one != two:
                    raise Unfit(
                        f"{name}: its parameters were saved in groups that differ, {first} is {one} and {other} "
                        f"is {two}; give the optimizer the parameter groups it was saved with"
                    )
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else None
            if shape != (place.shape if isinstance(place, Shard) else None):
                raise Unfit(f"{name}: its parameters were saved with another kind of value, {one}")
            found.append((place, value))
        return found
