"""Everything a training loop needs to go on as if nothing had happened, by name.

model.*, optimizer.*          as torch.distributed.checkpoint.state_dict names them; sharded, any layout
extra.<name>.*                the same for further objects with state_dict() and load_state_dict()
scheduler, scaler             one object each
data.rank-00003               one object per rank: its place in the data, and the data's state_dict() if it has one
equivalence.rank-00003        one object per rank, where there is something to compare a restored model by
random.rank-00003.<source>    tensors per rank
random.pass.rank-00003.<source>  the same, as the pass over the data that is under way began
own.rank-00003.<name>         what of the above rank 3 holds in other content than the rank that stores <name>
loop                          one object, of a loop that counts its steps by itself
asked                         one object: what the script had asked for of the settings that are in force
outline                       one object: which names of model, optimizer and extra the rank holds, in their order
keys                          in older checkpoints one object: the keys of dictionaries, where some are no text

In a world of another size the data's own state means nothing, and is not taken. Only data that says that it
`counts_globally` takes one: rank r that of rank (r mod saved size). All other data, and in any world data without
a saved state, passes over as many batches of the pass per rank as make the same number over all ranks: that is
right for data that deals batches of one size out to the ranks in turn. For the random state see `randomness`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.nn import Module
from torch.optim import Optimizer

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.capture import asked, loopplace, optimizerstate, randomness
from holdfast.checkpoint.capture.allowed import NOTHING, Allowed
from holdfast.checkpoint.capture.asked import Asked
from holdfast.checkpoint.capture.dataplace import DataPlace, Stateful
from holdfast.checkpoint.capture.equivalence import Equivalence
from holdfast.checkpoint.capture.loopplace import LoopPlace
from holdfast.checkpoint.format.nested import Flat, flatten
from holdfast.checkpoint.format.wrappers import unwrapped

SCHEDULER, SCALER, OUTLINE, KEYS = "scheduler", "scaler", "outline", "keys"
_GENERATOR: Final = re.compile(r"random\.(?:pass\.)?rank-(\d+)\.(.+)")
_OBJECT: Final = re.compile(
    rf"{SCHEDULER}|{SCALER}|{OUTLINE}|{KEYS}|{loopplace.NAME}|{asked.NAME}"
    r"|(data|equivalence)\.rank-\d+|own\.rank-\d.*"
)


def data_name(rank: int) -> str:
    return f"data.rank-{rank:05d}"


def equivalence_name(rank: int) -> str:
    return f"equivalence.rank-{rank:05d}"


def objects_among(names: Iterable[str]) -> frozenset[str]:
    """Those under which a dictionary is one object. Empty where they are not of a state that was saved whole."""
    found = frozenset(names)
    is_whole = any(name.startswith(random_prefix(0)) for name in found)
    return frozenset(filter(_OBJECT.fullmatch, found)) if is_whole else frozenset()


def random_prefix(rank: int) -> str:
    return f"random.rank-{rank:05d}."


def begun_prefix(rank: int) -> str:
    return f"random.pass.rank-{rank:05d}."


@dataclass(frozen=True, slots=True)
class Generator:
    """One of a rank's generators of random numbers. Several tensors hold its state, now and as a pass began."""

    rank: int
    source: str

    def __str__(self) -> str:
        return f"{self.source} of rank {self.rank}"


def generator_of(name: str) -> Generator | None:
    """Whose state is saved under `name`; None: it is no state of a generator."""
    found = _GENERATOR.fullmatch(name)
    return None if found is None else Generator(int(found[1]), randomness.generator_of(found[2]))


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
    settings: Asked | None = None
    allowed: Allowed = NOTHING

    def __post_init__(self) -> None:
        for name, each in self.extra.items():
            if not isinstance(each, Stateful):
                fix = "give it state_dict() and load_state_dict()"
                raise InvalidInput(Problem(field=f"extra.{name}", value=type(each).__name__, fix=fix))

    def sharded(self) -> dict[str, Any]:
        """Model, optimizer and extra, nested. The tensors are those in use, not copies."""
        state = self._trained()
        if self.extra:
            state["extra"] = {name: each.state_dict() for name, each in self.extra.items()}
        return state

    def _trained(self) -> dict[str, Any]:
        """Looking at an optimizer changes nothing of it."""
        optimizer = optimizerstate.state_of(self.model, self.optimizer)
        model = {unwrapped(name): value for name, value in get_model_state_dict(self.model).items()}
        return {"model": model, "optimizer": optimizer}

    @property
    def singles(self) -> dict[str, Stateful]:
        """What is one object of its own, by name."""
        named = {SCHEDULER: self.scheduler, SCALER: self.scaler}
        return {name: each for name, each in named.items() if each is not None}

    def flat(self, rank: int) -> Flat:
        """All of it, as rank `rank` saves it."""
        state = self._trained()
        trained, optimizer = flatten(state), state["optimizer"]
        if optimizer and optimizerstate.is_usual(optimizer):
            del trained.outline["optimizer"][optimizerstate.GROUPS]  # those have a way of their own
        return trained.beside(self.own(rank))

    def own(self, rank: int) -> Flat:
        """What neither the model nor the optimizer holds."""
        extra = {name: each.state_dict() for name, each in self.extra.items()}
        flat = flatten({"extra": extra} if extra else {})
        whole = dict(flat.values)
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
        if self.settings is not None:
            whole[asked.NAME] = self.settings.state_dict()
        for source, tensor in randomness.capture().items():
            whole[random_prefix(rank) + source] = tensor
        return Flat(whole, {name: flat.paths.get(name, (name,)) for name in whole}, flat.outline)

    def load_sharded(self, state: dict[str, Any]) -> None:
        """The reverse of `sharded`."""
        model = state["model"]
        if any(unwrapped(name) != name for name, _ in self.model.named_modules()):
            # torch has names of its own for some nestings.
            model = {name: model[unwrapped(name)] for name in get_model_state_dict(self.model)}
        set_model_state_dict(self.model, model)
        optimizerstate.load(self.model, self.optimizer, state["optimizer"])
        for name, each in self.extra.items():
            if name in state.get("extra", {}):
                load_extra(each, state["extra"][name])


def load_extra(extra: Stateful, saved: Any) -> None:
    """An optimizer has back what it is given, in the dtypes it was saved in."""
    if isinstance(extra, Optimizer):
        optimizerstate.load_numbered(extra, saved)
    else:
        extra.load_state_dict(saved)
