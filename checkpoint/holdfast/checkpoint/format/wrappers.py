"""Names without what wrappers add to them: a checkpoint is of a model, however it is compiled or recomputed."""

from typing import Final

# What torch.compile and checkpoint_wrapper call the module that they wrap.
# Source: torch/_dynamo/eval_frame.py; torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py
_WRAPPED: Final = ("_orig_mod", "_checkpoint_wrapped_module")


def unwrapped(name: str) -> str:
    """The name of the same thing in the model itself, in whatever order wrappers are nested."""
    if not any(each in name for each in _WRAPPED):
        return name
    return ".".join(part for part in name.split(".") if part not in _WRAPPED)
