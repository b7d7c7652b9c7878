"""An optimizer's state by the names of its parameters, said and taken back without a step of the optimizer.

torch's own way steps an optimizer that has no state yet, with gradients of zero: that moves averages and counts,
and some optimizers cannot do it at all. And it casts what it loads to the parameter's dtype, and drops the state
of parameters that do not train. Here the optimizer says its state itself, numbers become names, and after a load
what it holds is what was given.

An optimizer that says its state in another form than torch's own (`state`, `param_groups`) has that form kept.
Source: _init_optim_state, _split_optim_state_dict, torch/distributed/checkpoint/state_dict.py;
_process_value_according_to_param_policy, torch/optim/optimizer.py
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn import Module
from torch.optim import Optimizer

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.capture.torchstate import names_of

STATE: Final = "state"
GROUPS: Final = "param_groups"
MEMBERS: Final = "params"


def parameters_of(model: Module, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """What the optimizer trains, by the name in `model`, in the optimizer's order.

    Raises InvalidInput for a parameter that `model` has not got.
    """
    known = {parameter: name for name, parameter in named_parameters(model).items()}
    found: dict[str, torch.Tensor] = {}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group[MEMBERS]):
            if parameter not in known:
                fix = "give the Checkpointer a model that has it, as a ModuleList of all that is trained"
                value = f"a parameter of shape {list(parameter.shape)} that the model has not got"
                raise InvalidInput(Problem(f"optimizer.param_groups[{number}].params[{place}]", value, fix))
            found[known[parameter]] = parameter
    return found


def named_parameters(model: Module) -> dict[str, torch.Tensor]:
    """By the names they are saved under, each once; none where only torch can name them."""
    if is_flattened(model):
        return {}
    return {next(iter(names_of(model, name))): parameter for name, parameter in model.named_parameters()}


def require_optimizer(model: Module, optimizer: object) -> None:
    """Raises InvalidInput for what cannot be saved as the optimizer of `model`."""
    if isinstance(optimizer, list | tuple):
        fix = "give one of them here and the others as extra={name: optimizer}, or one that wraps them all"
        raise InvalidInput(Problem("optimizer", f"{len(optimizer)} optimizers", fix))
    lacks = [each for each in (GROUPS, "state_dict", "load_state_dict") if not hasattr(optimizer, each)]
    if lacks:
        fix = f"give it {', '.join(lacks)}, as torch.optim.Optimizer has them"
        raise InvalidInput(Problem("optimizer", type(optimizer).__name__, fix))
    if not is_flattened(model):
        parameters_of(model, cast(Optimizer, optimizer))


def numbered(optimizer: Optimizer) -> list[torch.Tensor]:
    """What it trains, as its state dict numbers it."""
    return [parameter for group in optimizer.param_groups for parameter in group[MEMBERS]]


def is_usual(state: Mapping[str, Any]) -> bool:
    """Whether it is torch's own form."""
    return isinstance(state.get(STATE, {}), Mapping) and isinstance(state.get(GROUPS), list)


def state_of(model: Module, optimizer: Optimizer) -> dict[str, Any]:
    """As torch.distributed.checkpoint names it, without what is empty. The tensors are those in use. Raises as
    `parameters_of`.
    """
    if is_flattened(model):
        told: dict[str, Any] = dict(get_optimizer_state_dict(model, optimizer))
        return told
    whole: dict[str, Any] = dict(optimizer.state_dict())
    if not is_usual(whole):
        return whole
    names = list(parameters_of(model, optimizer))
    by_number = dict(zip(_numbers(whole[GROUPS]), names, strict=True))
    state = {by_number.get(key, key): value for key, value in whole.pop(STATE, {}).items()}
    state = {key: value for key, value in state.items() if not isinstance(value, Mapping) or len(value)}
    if state:
        whole[STATE] = state
    members = iter(names)
    whole[GROUPS] = [{**group, MEMBERS: [next(members) for _ in group[MEMBERS]]} for group in whole[GROUPS]]
    return whole


def load(model: Module, optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """The reverse: what `optimizer` holds of its parameters is what is `saved`, in its dtypes; and no more."""
    if is_flattened(model):
        # Of a parameter that never had a gradient the optimizer keeps nothing, here as where it was saved.
        options = StateDictOptions(strict=False)
        set_optimizer_state_dict(model, optimizer, dict(saved), options=options)
        _load_settings(optimizer, saved[GROUPS])
    elif not is_usual(saved):
        optimizer.load_state_dict(dict(saved))
    else:
        numbers = {name: number for number, name in enumerate(parameters_of(model, optimizer))}
        state = {numbers.get(key, key): value for key, value in saved.get(STATE, {}).items()}
        groups = [{**group, MEMBERS: [numbers[each] for each in group[MEMBERS]]} for group in saved[GROUPS]]
        load_numbered(optimizer, {**saved, STATE: state, GROUPS: groups})


def load_numbered(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """The same where parameters are numbers, as the optimizer says them itself."""
    if not is_usual(saved):
        optimizer.load_state_dict(dict(saved))
        return
    # Of a checkpoint that does not say which keys are no text.
    state = {int(key) if str(key).isdecimal() else key: value for key, value in saved.get(STATE, {}).items()}
    optimizer.load_state_dict({**saved, STATE: state})
    for number, parameter in enumerate(numbered(optimizer)):
        if number in state:
            held = optimizer.state.get(parameter)
            optimizer.state[parameter] = _as_given(held, state[number], parameter.device)
    _load_settings(optimizer, saved[GROUPS])


def _load_settings(optimizer: Optimizer, groups: Sequence[Mapping[str, Any]]) -> None:
    """torch forgets the settings of a group without parameters, unless it is the last one."""
    for group, given in zip(optimizer.param_groups, groups, strict=True):
        group.update({key: value for key, value in given.items() if key != MEMBERS})


def _as_given(held: Any, given: Any, device: torch.device) -> Any:
    """What was loaded, where it is what was given; else that, on the parameter's device."""
    if isinstance(given, torch.Tensor):
        is_same = isinstance(held, torch.Tensor) and (held.dtype, held.shape) == (given.dtype, given.shape)
        return held if is_same else given.to(device)
    if isinstance(given, Mapping):
        kind = type(given) if isinstance(given, dict) else dict
        known: dict[Any, Any] = held if type(held) is kind else kind()
        for key, value in given.items():
            there = held.get(key) if isinstance(held, Mapping) else None
            known[key] = _as_given(there, value, device)
        return known
    if isinstance(given, list | tuple) and any(map(_is_nested, given)):
        is_same = isinstance(held, list | tuple) and len(held) == len(given)
        there = held if is_same else [None] * len(given)
        return type(given)(_as_given(one, other, device) for one, other in zip(there, given, strict=True))
    return given if held is None else held


def _is_nested(value: object) -> bool:
    return isinstance(value, torch.Tensor | list | tuple | Mapping)


def _numbers(groups: list[dict[str, Any]]) -> Iterator[int]:
    for group in groups:
        yield from group[MEMBERS]


def is_flattened(model: Module) -> bool:
    """Whether parameters are pieces of flat ones, of which torch alone knows the names."""
    return any(isinstance(each, FullyShardedDataParallel) for each in model.modules())
