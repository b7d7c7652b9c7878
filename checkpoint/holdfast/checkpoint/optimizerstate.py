"""Room for an optimizer's state, made without a step.

Stock torch makes an optimizer's state by stepping it once with zero gradients, which for a DTensor model takes
longer than the whole restore. What the state consists of can be read off the checkpoint instead.
"""

import torch
from torch.distributed.checkpoint.state_dict import _get_fqns
from torch.nn import Module
from torch.optim import Optimizer

from holdfast.checkpoint.stored import StoredCheckpoint

_MODEL, _PREFIX = "model.", "optimizer.state."


def make_room(model: Module, optimizer: Optimizer, checkpoint: StoredCheckpoint) -> None:
    """Give an optimizer that never stepped empty state tensors of the names and kinds in `checkpoint`.

    A state tensor either is a scalar or has its parameter's shape, and then its sharding. When the checkpoint
    holds anything else, nothing is done and the stock way is left to do it.
    """
    if optimizer.state or not all(checkpoint.has_tensor(name) for name in checkpoint.names(_PREFIX)):
        return
    kinds = _kinds(checkpoint)
    state = {}
    for name, parameter in model.named_parameters():
        (known_as,) = _get_fqns(model, name)
        room = {}
        for key, dtype, shape in kinds.pop(known_as, ()):
            if shape not in ((), tuple(parameter.shape)):
                return
            plain = shape == () and parameter.dim() > 0
            room[key] = torch.zeros((), dtype=dtype) if plain else torch.zeros_like(parameter, dtype=dtype)
        if room:
            state[parameter] = room
    held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    # Parameters of other stages are none of this rank's; what else is left over is not understood.
    is_understood = all(checkpoint.has_tensor(f"{_MODEL}{known_as}") for known_as in kinds)
    if is_understood and held >= state.keys():
        optimizer.state.update(state.items())


def _kinds(checkpoint: StoredCheckpoint) -> dict[str, list[tuple[str, torch.dtype, tuple[int, ...]]]]:
    """By parameter: what its state tensors are called, their dtype and their whole shape."""
    kinds: dict[str, list[tuple[str, torch.dtype, tuple[int, ...]]]] = {}
    for name in checkpoint.names(_PREFIX):
        parameter, _, key = name.removeprefix(_PREFIX).rpartition(".")
        kinds.setdefault(parameter, []).append((key, *checkpoint.shape_of(name)))
    return kinds
