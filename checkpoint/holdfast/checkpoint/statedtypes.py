"""An optimizer's state in the dtypes it was saved in.

Stock torch loads every floating-point state tensor, but `step`, in its parameter's dtype. What an optimizer keeps
more exactly than that, or as whole numbers, would come back as something else.
Source: `_process_value_according_to_param_policy`, torch/optim/optimizer.py
"""

from collections.abc import Mapping

import torch
from torch.distributed.checkpoint.state_dict import _get_fqns
from torch.nn import Module
from torch.optim import Optimizer


def keep_dtypes(model: Module, optimizer: Optimizer, loaded: Mapping[str, object]) -> None:
    """Put back what was cast. `loaded` is the state that `optimizer` was given, by parameter."""
    for name, parameter in model.named_parameters():
        held = optimizer.state.get(parameter)
        (known_as,) = _get_fqns(model, name)
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
