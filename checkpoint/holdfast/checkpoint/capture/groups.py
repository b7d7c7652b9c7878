"""The parameter groups of an optimizer, of which a rank may hold only some of the parameters.

Under pipeline parallelism every rank's optimizer has its own parameters, in groups that have the same numbers, and
so the same names, on all ranks. What is saved of a group is one: its settings, which all ranks have alike, and the
parameters of all ranks. For the way back see `Regrouping`.
"""

import re
from collections.abc import Mapping, Sequence

import torch

from holdfast.api.errors import InvalidInput, Problem

PREFIX = "optimizer.param_groups."

Members = dict[str, list[str]]
"""The parameters' names by the name of the list that they are saved as."""

_LIST = re.compile(re.escape(PREFIX) + r"\d+\.params")
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_FIX = "give all ranks the same parameter groups in the same order, empty ones too"


def is_list(name: str) -> bool:
    """Whether it is the name of a group's list of parameters."""
    return _LIST.fullmatch(name) is not None


def number_of(name: str) -> str:
    """Of the group that has a value of this name."""
    return name.removeprefix(PREFIX).partition(".")[0]


def setting_of(name: str) -> str:
    """What the value of this name is called within its group."""
    return name.removeprefix(PREFIX).partition(".")[2]


def named_in(number: str, name: str) -> str:
    """The name of the same setting in the group of that number."""
    return f"{PREFIX}{number}.{setting_of(name)}"


def joined(said: Sequence[Members]) -> Members:
    """The groups' parameters on all ranks, in the order of the ranks, given those of each. Raises InvalidInput
    when ranks have the same one in different groups.
    """
    whole: dict[str, dict[str, None]] = {}
    homes: dict[str, str] = {}
    for members in said:
        for name, parameters in members.items():
            whole.setdefault(name, {}).update(dict.fromkeys(parameters))
            for parameter in parameters:
                if homes.setdefault(parameter, name) != name:
                    value = f"{parameter} is in this one on one rank, in {homes[parameter]} on another"
                    raise InvalidInput(Problem(field=name, value=value, fix=_FIX))
    return {name: list(parameters) for name, parameters in whole.items()}


def require_alike(said: Sequence[Mapping[str, str]]) -> None:
    """Raises InvalidInput when two ranks have different `settings` of one name."""
    known: dict[str, tuple[int, str]] = {}
    for rank, settings in enumerate(said):
        for name, text in settings.items():
            first, other = known.setdefault(name, (rank, text))
            if other != text:
                value = f"{other} on rank {first}, {text} on rank {rank}"
                fix = f"{_FIX}, and change learning rates on all of them alike"
                raise InvalidInput(Problem(field=name, value=value, fix=fix))


def as_text(value: object) -> str:
    """The same for the same value on any rank; empty for what cannot be told by its text."""
    if isinstance(value, torch.Tensor):
        return repr(value.tolist())
    each = value if isinstance(value, list | tuple) else [value]
    return repr(value) if all(isinstance(one, _PLAIN) for one in each) else ""
