"""The gradient of a step, before a framework's optimizer takes it: its norm over all ranks, and dropping it."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn import Module, Parameter
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer


@torch.no_grad()
def total_norm(module: Module, parameters: Iterable[Parameter]) -> Tensor | None:
    """The 2-norm of the gradients of `parameters`, over all shards of them; None where there is no gradient.

    `module` is what the framework trains: in a `FullyShardedDataParallel` no parameter knows of its other shards,
    so there it is asked for the norm of all of them. Collective where gradients are sharded.
    """
    if isinstance(module, FullyShardedDataParallel):
        return module.clip_grad_norm_(math.inf)  # clips nothing, and returns the norm
    gradients = [each.grad for each in parameters if each.grad is not None]
    if not gradients:
        return None
    norm = get_total_norm(gradients)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def drop(optimizer: Optimizer) -> None:
    """Have the optimizer's next update change nothing: a parameter without a gradient is passed over, with its
    moments and its weight decay.
    """
    optimizer.zero_grad(set_to_none=True)


def parameters_of(optimizer: Optimizer) -> list[Parameter]:
    """All that it updates."""
    return [each for group in optimizer.param_groups for each in group["params"]]
