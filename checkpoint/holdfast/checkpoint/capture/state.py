"""Everything a training loop needs to go on as if nothing had happened, by name.

model.*, optimizer.*          as torch.distributed.checkpoint.state_dict names them; sharded, any layout
extra.<name>.*                the same for further objects with state_dict() and load_state_dict()
scheduler, scaler             one object each
data.rank-00003               one object per rank: its place in the data, and the data's state_dict() if it has one
equivalence.rank-00003        one object per rank, where there is something to compare a restored model by
random.rank-00003.<source>    tensors per rank
random.pass.rank-00003.<source>  the same, as the pass over the data that is under way began
loop                          one object, of a loop that counts its steps by itself

In a world of another size the data's own state means nothing, and is not taken. Only data that says that it
`counts_globally` takes one: rank r that of rank (r mod saved size). All other data, and in any world data without
a saved state, passes over as many batches of the pass per rank as make the same number over all ranks: that is
right for data that deals batches of one size out to the ranks in turn. For the random state see `randomness`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.nn import Module
from torch.optim import Optimizer

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.capture import loopplace, randomness
from holdfast.checkpoint.capture.dataplace import DataPlace, Stateful
from holdfast.checkpoint.capture.equivalence import Equivalence
from holdfast.checkpoint.capture.loopplace import LoopPlace
from holdfast.checkpoint.capture.torchstate import flatten_state_dict, names_of

SCHEDULER, SCALER = "scheduler", "scaler"


def data_name(rank: int) -> str:
    return f"data.rank-{rank:05d}"


def equivalence_name(rank: int) -> str:
    return f"equivalence.rank-{rank:05d}"


def random_prefix(rank: int) -> str:
    return f"random.rank-{rank:05d}."


def begun_prefix(rank: int) -> str:
    return f"random.pass.rank-{rank:05d}."


@dataclass(frozen=True, slots=True)
class FlatState:
    """State by flat name, and how the names are nested."""

    values: Mapping[str, object]
    paths: Mapping[str, tuple[str | int, ...]]


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The objects. `data` is None where a loop counts by itself and none is given."""

    model: Module
    optimizer: Optimizer
    scheduler: Stateful | None
    data: DataPlace | None
    extra: Mapping[str, Stateful]
    scaler: Stateful | None = None
    equivalence: Equivalence | None = None
    loop: LoopPlace | None = None

    def __post_init__(self) -> None:
        for name, each in self.extra.items():
            if not isinstance(each, Stateful):
                fix = "give it state_dict() and load_state_dict()"
                raise InvalidInput(Problem(field=f"extra.{name}", value=type(each).__name__, fix=fix))

    def sharded(self) -> dict[str, Any]:
        """Model, optimizer and extra, nested. The tensors are those in use, not copies."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state: dict[str, Any] = {"model": model, "optimizer": optimizer}
        if self.extra:
            state["extra"] = {name: each.state_dict() for name, each in self.extra.items()}
        return state

    @property
    def singles(self) -> dict[str, Stateful]:
        """What is one object of its own, by name."""
        named = {SCHEDULER: self.scheduler, SCALER: self.scaler}
        return {name: each for name, each in named.items() if each is not None}

    def flat(self, rank: int) -> FlatState:
        """All of it, as rank `rank` saves it."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        values, paths = flatten_state_dict({"model": model, "optimizer": optimizer})
        own = self.own(rank)
        return FlatState(values={**values, **own.values}, paths={**paths, **own.paths})

    def own(self, rank: int) -> FlatState:
        """What neither the model nor the optimizer holds."""
        extra = {name: each.state_dict() for name, each in self.extra.items()}
        values, paths = flatten_state_dict({"extra": extra} if extra else {})
        whole: dict[str, object] = dict(values)
        for name, single in self.singles.items():
            whole[name] = single.state_dict()
        if self.data is not None:
            whole[data_name(rank)] = self.data.state_dict()
            for source, tensor in self.data.begun.items():
                whole[begun_prefix(rank) + source] = tensor
        if self.equivalence is not None:
            whole[equivalence_name(rank)] = self.equivalence.state_dict()
        if self.loop is not None:
            whole[loopplace.NAME] = self.loop.state_dict()
        for source, tensor in randomness.capture().items():
            whole[random_prefix(rank) + source] = tensor
        return FlatState(values=whole, paths={name: paths.get(name, (name,)) for name in whole})

    def load_sharded(self, state: dict[str, Any]) -> None:
        """The reverse of `sharded`."""
        set_model_state_dict(self.model, state["model"])
        # Of a parameter that never had a gradient the optimizer keeps nothing, here as where it was saved.
        options = StateDictOptions(strict=False)
        set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"], options=options)
        keep_dtypes(self.model, self.optimizer, state["optimizer"]["state"])
        for group, saved in zip(self.optimizer.param_groups, state["optimizer"]["param_groups"], strict=True):
            # Stock torch forgets the settings of a group without parameters, unless it is the last one.
            group.update({key: value for key, value in saved.items() if key != "params"})
        for name, each in self.extra.items():
            each.load_state_dict(state["extra"][name])


# An optimizer's state in the dtypes it was saved in.
#
# Stock torch loads every floating-point state tensor, but `step`, in its parameter's dtype. What an optimizer
# keeps more exactly than that, or as whole numbers, would come back as something else.
# Source: `_process_value_according_to_param_policy`, torch/optim/optimizer.py


def keep_dtypes(model: Module, optimizer: Optimizer, loaded: Mapping[str, object]) -> None:
    """Put back what was cast. `loaded` is the state that `optimizer` was given, by parameter."""
    for name, parameter in model.named_parameters():
        held = optimizer.state.get(parameter)
        (known_as,) = names_of(model, name)
        given = loaded.get(known_as)
        if not held or not isinstance(given, Mapping):
            continue
        for key, value in given.items():
            now = held.get(key)
            is_cast = (
                isinstance(now, torch.Tensor) and isinstance(value, torch.Tensor) and now.dtype != value.dtype
            )
            if is_cast:
                held[key] = value.to(device=now.device)
