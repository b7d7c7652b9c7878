"""Looking into the state that torch keeps, beyond what is public: which names a model's parameters go by, which
part of a sharded tensor is here, what a scheduler makes of a learning rate, and which workers a loader has.

What `nn.Module` and `Optimizer` keep of themselves (`_parameters`, `_buffers`) is part of their pickles since
torch 1.0, and is read where it is needed.
"""

import math
import warnings
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch.distributed.checkpoint.state_dict import _get_fqns
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn import Module
from torch.optim import lr_scheduler
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader

from holdfast.api.torchnames import TorchName
from holdfast.checkpoint.format.wrappers import unwrapped

__all__ = [
    "NAMES",
    "compute_local_shape_and_global_offset",
    "iterator_of",
    "local_of",
    "make_iterator",
    "names_of",
    "rates_of",
    "restart",
    "sharding_of",
    "tree_leaves",
    "tree_map",
]

_IMPORTED: Final = "`import holdfast.checkpoint` fails: this torch is not supported"
_IN_PROPORTION: Final = "a learning rate that the script decides keeps its proportion to that of the checkpoint"
_OTHER_ORDER: Final = "a loader with persistent_workers=True goes on in another order in a later epoch"
NAMES: Final = (
    TorchName("torch.distributed.checkpoint.state_dict", "_get_fqns", _IMPORTED),
    TorchName("torch.distributed.tensor._utils", "compute_local_shape_and_global_offset", _IMPORTED),
    TorchName("torch.distributed.tensor", "DTensor._local_tensor", "to_local() is called, which takes longer"),
    TorchName("torch.distributed.tensor", "DTensor._spec", "mesh, placements and shape are compared one by one"),
    TorchName("torch.optim.lr_scheduler", "StepLR._get_closed_form_lr", _IN_PROPORTION),
    TorchName("torch.utils.data", "DataLoader._get_iterator", _OTHER_ORDER),
    TorchName("torch.utils._pytree", "tree_leaves", _IMPORTED),
    TorchName("torch.utils._pytree", "tree_map", _IMPORTED),
)


def names_of(model: Module, name: str) -> set[str]:
    """As what the parameter `name` of `model` is saved: several where it is several in one."""
    return set(map(unwrapped, _get_fqns(model, name)))


def iterator_of(loader: "DataLoader[Any]") -> object:
    """The one that a loader with persistent workers keeps; None: it has none yet."""
    return getattr(loader, "_iterator", None)


def make_iterator(loader: "DataLoader[Any]") -> None:
    """The one that a loader with persistent workers keeps."""
    make = getattr(loader, "_get_iterator", None)
    if make is not None:
        loader._iterator = make()


def local_of(value: torch.Tensor) -> torch.Tensor:
    """What is in this process's memory of a tensor, sharing it."""
    if not isinstance(value, DTensor):
        return value
    local: torch.Tensor | None = getattr(value, "_local_tensor", None)
    return value.to_local() if local is None else local


def sharding_of(values: Iterable[object]) -> list[object]:
    """How each that is sharded is: equal where all are sharded alike."""
    return [_sharding(value) for value in values if isinstance(value, DTensor)]


def _sharding(value: DTensor) -> object:
    told: object = getattr(value, "_spec", None)
    if told is not None:
        return told
    return (value.device_mesh, value.placements, value.shape, value.stride(), value.dtype)


def rates_of(scheduler: Any) -> list[Any] | None:
    """What a scheduler's settings make of the learning rates where it is, by group; None where that follows from
    the rates of the step before alone. Source: torch/optim/lr_scheduler.py
    """
    if (inner := getattr(scheduler, "_schedulers", None)) is not None:
        milestones = getattr(scheduler, "_milestones", None)
        return None if milestones is None else rates_of(inner[bisect_right(milestones, scheduler.last_epoch)])
    if (closed_form := getattr(scheduler, "_get_closed_form_lr", None)) is not None:
        return list(closed_form())
    if not isinstance(scheduler, _FROM_SETTINGS):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it takes this for a mistake of who wants the last rates
        return list(scheduler.get_lr())


_FROM_SETTINGS: Final = (
    lr_scheduler.LambdaLR,
    lr_scheduler.OneCycleLR,
    lr_scheduler.CyclicLR,
    lr_scheduler.CosineAnnealingWarmRestarts,
)


def restart(scheduler: object) -> None:
    """Which of its cycles a scheduler with restarts is in, by its settings. Source: torch/optim/lr_scheduler.py,
    `CosineAnnealingWarmRestarts.step`
    """
    if not isinstance(scheduler, lr_scheduler.CosineAnnealingWarmRestarts) or scheduler.last_epoch < 0:
        return
    first, times, place = scheduler.T_0, scheduler.T_mult, scheduler.last_epoch
    whole = place // first if times == 1 else int(math.log(place / first * (times - 1) + 1, times))
    before = first * whole if times == 1 else first * (times**whole - 1) // (times - 1)
    scheduler.T_cur, scheduler.T_i = place - before, first * times**whole
