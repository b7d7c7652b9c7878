"""The settings that the script made its optimizers and schedulers with, kept beside what became of them.

A checkpoint has one object of them, `asked`: what was asked for of the settings that are in force. After a restore
it says which of them the script asks for otherwise by now (`settings`), and those that the script is to decide are
put in place. A schedule goes on where it was with them: what it makes of a learning rate at a step follows from
its settings (`torchstate.rates_of`), else the rate keeps its proportion.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from holdfast.checkpoint.capture import groups
from holdfast.checkpoint.capture.dataplace import Stateful
from holdfast.checkpoint.capture.learningrate import GROUP_KEYS, SCHEDULER_KEYS, leaves
from holdfast.checkpoint.capture.settings import (
    Absent,
    Setting,
    Side,
    Values,
    Wishes,
    class_of,
    require_known,
    settled,
)
from holdfast.checkpoint.capture.torchstate import rates_of, restart
from holdfast.checkpoint.format.nested import NamePath

NAME: Final = "asked"
"""Of the one object that it is in a checkpoint."""

_LARGEST: Final = 1024
"""Numbers: what has more of them is a table and no setting."""
_NO_SETTINGS: Final = {"params", "param_names", "initial_lr"}
# Where a scheduler is, and what it takes from the groups or from a step. Source: torch/optim/lr_scheduler.py
_PLACES: Final = {
    "base_lrs",
    "last_epoch",
    "_last_lr",
    "_step_count",
    "_is_initial",
    "_get_lr_called_within_step",
    "best",
    "num_bad_epochs",
    "cooldown_counter",
    "T_cur",
    "T_i",
}


class _Opaque(Exception):
    """No number, no text, no list of them."""


@dataclass(frozen=True, slots=True)
class _Own:
    """A setting as the script made it: where in its owner, and the value itself."""

    path: NamePath
    value: Any


class Asked:
    """Of `optimizer`, `scheduler`, and those among `extra`, as the script made them: to be made before a restore,
    which gives it what was saved and calls `matched`.
    """

    def __init__(self, optimizer: Optimizer, scheduler: Stateful | None, extra: Mapping[str, Stateful]) -> None:
        others = {f"extra.{name}": each for name, each in extra.items()}
        self._optimizers = {
            "optimizer": optimizer,
            **{name: each for name, each in others.items() if isinstance(each, Optimizer)},
        }
        self._schedulers = {
            **({"scheduler": scheduler} if scheduler is not None else {}),
            **{name: each for name, each in others.items() if isinstance(each, LRScheduler)},
        }
        made = dict(self._settings())
        self._now = _plain_values(made)
        self._own = {name: _Own(made[name].path, deepcopy(made[name].value)) for name in self._now}
        self._in_force: Values = dict(self._now)
        self._saved: Values = {}
        self._is_told = False

    def state_dict(self) -> dict[str, Any]:
        return dict(self._in_force)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._in_force, self._is_told = dict(state), True

    def matched(self, sources: Mapping[str, Sequence[str]]) -> None:
        """All that was saved is in place. `sources` are the saved groups of the optimizer's parameters, by the
        number of the group that they are in. What a checkpoint does not say is read off what it has.
        """
        self._saved = self._in_force if self._is_told else _plain_values(dict(self._settings()))
        if self._is_told and sources:
            saved = {name: value for name, value in self._saved.items() if not name.startswith(groups.PREFIX)}
            for name, value in self._saved.items():
                for number, (first, *_) in sources.items():
                    if name.startswith(groups.PREFIX) and groups.number_of(name) == first:
                        saved[groups.named_in(number, name)] = value
            self._saved = saved

    def settle(self, wishes: Wishes, factor: float) -> dict[str, Setting]:
        """What holds of each. What of the script's does is put in place; `factor` is what a cut by Holdfast has
        made of the learning rates that were restored. Raises InvalidInput for `wishes` that cannot be.
        """
        found = settled(self._now, self._saved, wishes)
        taken = {
            name
            for name, each in found.items()
            if each.differs and each.holds is Side.SCRIPT and each.checkpoint is not Absent.ABSENT
        }
        for owner, optimizer in self._optimizers.items():
            self._take(owner, optimizer, taken, factor)
        self._in_force = {name: each.in_force for name, each in found.items()}
        return found

    def require_known(self, wishes: Wishes) -> None:
        """Raises InvalidInput for a wish that is none, or for a setting that the script has not got."""
        require_known(wishes, self._now)

    @torch.no_grad()
    def _take(self, owner: str, optimizer: Optimizer, taken: set[str], factor: float) -> None:
        """The script's, in an optimizer's groups and the schedulers that move them."""
        movers = {name: each for name, each in self._schedulers.items() if self._moves(name, each, owner)}
        anew: set[int] = set()  # the groups whose rate is no more what the schedule made of it
        for number, group in enumerate(optimizer.param_groups):
            held = group.get("lr")
            held = held.clone() if isinstance(held, torch.Tensor) else held
            for key in list(group):
                name = f"{owner}.param_groups.{number}.{key}"
                if name not in taken:
                    continue
                value = deepcopy(self._own[name].value)
                value = _scaled(value, factor) if key in GROUP_KEYS else value
                if key == "lr":
                    anew.add(number)
                    if "initial_lr" in group:
                        _put(group, "initial_lr", value)
                    if movers and self._saved[name]:
                        value = held * self._now[name] / self._saved[name]  # type: ignore[operator]
                _put(group, key, value)
        for name, scheduler in movers.items():
            if self._reschedule(name, scheduler, taken, factor):
                anew.update(range(len(optimizer.param_groups)))
            if anew:
                _follow(scheduler, optimizer.param_groups, anew)

    def _moves(self, name: str, scheduler: Stateful, owner: str) -> bool:
        """Whether the scheduler moves that optimizer's groups. One that does not say whose it moves, or moves one
        that is wrapped, is of the first one.
        """
        moved = getattr(scheduler, "optimizer", None)
        of = next((each for each, optimizer in self._optimizers.items() if optimizer is moved), "optimizer")
        return of == owner

    def _reschedule(self, owner: str, scheduler: Stateful, taken: set[str], factor: float) -> bool:
        """The script's, in what a scheduler keeps. Whether there was any."""
        own = [self._own[name] for name in self._own if name in taken and name.startswith(f"{owner}.")]
        if own:
            state = deepcopy(scheduler.state_dict())
            for each in own:
                nested: Any = state
                for step in each.path[:-1]:
                    nested = nested[step]
                is_rate = each.path[-1] in SCHEDULER_KEYS
                nested[each.path[-1]] = _scaled(each.value, factor) if is_rate else deepcopy(each.value)
            scheduler.load_state_dict(state)
            for leaf in leaves(scheduler):
                restart(leaf)
        return bool(own)

    def _settings(self) -> Iterator[tuple[str, _Own]]:
        for owner, optimizer in self._optimizers.items():
            kind = type(optimizer)
            yield class_of(owner), _Own(("class",), f"{kind.__module__}.{kind.__qualname__}")
            for number, group in enumerate(optimizer.param_groups):
                for key, value in group.items():
                    if key not in _NO_SETTINGS:
                        # A scheduler has moved the rate, maybe, and kept where it began.
                        first = group.get("initial_lr", value) if key == "lr" else value
                        yield f"{owner}.param_groups.{number}.{key}", _Own((key,), first)
        for owner, scheduler in self._schedulers.items():
            state: object = scheduler.state_dict()
            for path, value in _of_scheduler(state) if isinstance(state, Mapping) else ():
                yield ".".join(map(str, (owner, *path))), _Own(path, value)


def _of_scheduler(state: Mapping[str, Any], way: NamePath = ()) -> Iterator[tuple[NamePath, Any]]:
    for key, value in state.items():
        if key == "_schedulers" and isinstance(value, list | tuple):
            for place, inner in enumerate(value):
                if isinstance(inner, Mapping):
                    yield from _of_scheduler(inner, (*way, key, place))
        elif key not in _PLACES:
            yield (*way, key), value


def _follow(scheduler: object, param_groups: Sequence[dict[str, Any]], numbers: set[int]) -> None:
    """The groups of these `numbers` begin anew with what they have: so does what moves them, from where it is."""
    for leaf in leaves(scheduler):
        bases = getattr(leaf, "base_lrs", None)
        if isinstance(bases, list) and len(bases) == len(param_groups):
            for number in numbers:
                bases[number] = deepcopy(param_groups[number].get("initial_lr", bases[number]))
    rates = rates_of(scheduler)
    if rates is not None and len(rates) == len(param_groups):
        for number in numbers:
            _put(param_groups[number], "lr", rates[number])
    for each in (scheduler, *leaves(scheduler)):
        if hasattr(each, "_last_lr"):
            each._last_lr = [deepcopy(group["lr"]) for group in param_groups]


def _put(group: dict[str, Any], key: str, value: Any) -> None:
    """A learning rate that is on the device stays there."""
    held = group.get(key)
    if isinstance(held, torch.Tensor):
        held.copy_(torch.as_tensor(value))
    else:
        group[key] = float(value) if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def _scaled(value: Any, factor: float) -> Any:
    if factor == 1.0 or value is None:
        return deepcopy(value)
    return [each * factor for each in value] if isinstance(value, list) else value * factor


def _plain_values(own: Mapping[str, _Own]) -> Values:
    found: Values = {}
    for name, each in own.items():
        try:
            found[name] = _plain(each.value)
        except _Opaque:
            continue
    return found


def _plain(value: Any) -> object:
    """To be compared, and stored. Raises _Opaque for what has no text."""
    if value is None or (isinstance(value, bool | int | float | str) and not hasattr(value, "tolist")):
        return value
    if isinstance(value, list | tuple) and len(value) <= _LARGEST:
        return [_plain(each) for each in value]
    if isinstance(value, Mapping) and len(value) <= _LARGEST:
        pairs = value.items() if isinstance(value, Counter) else ((str(key), each) for key, each in value.items())
        return sorted([key, _plain(each)] for key, each in pairs)
    if hasattr(value, "tolist"):
        try:
            tensor = torch.as_tensor(value)
            if tensor.numel() <= _LARGEST:
                is_coarse = tensor.is_floating_point() and tensor.dtype.itemsize < 8
                return _rounded(tensor.tolist()) if is_coarse else tensor.tolist()
        except (TypeError, ValueError, RuntimeError) as error:
            raise _Opaque from error
    raise _Opaque


def _rounded(value: Any) -> object:
    """As many digits as single precision has: 0.001 and not 0.0010000000474974513."""
    return [_rounded(each) for each in value] if isinstance(value, list) else float(f"{value:.7g}")
