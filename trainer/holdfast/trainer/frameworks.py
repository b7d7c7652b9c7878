"""What frameworks keep of the round they were first used in, and what becomes of it in the next.

A process that re-enters is as good as a new one only when nothing in it still believes in the world of the round
before. What is known to keep it, and forgets when told, is told to. What keeps process groups that are gone is
named, so that the watchdog starts its workers anew. Frameworks are looked for among the modules that the script
has imported; nothing is imported here.

Forgotten: Accelerate's shared states, from which its prepared data loaders, and those of Transformers' Trainer,
take the number of ranks; the rank that Lightning's rank-zero functions go by.
Source: https://github.com/huggingface/accelerate/blob/main/src/accelerate/state.py,
https://github.com/Lightning-AI/utilities/blob/main/src/lightning_utilities/core/rank_zero.py

Not forgotten by anybody: a rank or a number of ranks that the script itself keeps outside of its training
function.
"""

import sys
from collections.abc import Callable

import torch

from holdfast.api.control import Assignment, Reenters
from holdfast.api.round import Reentry
from holdfast.trainer.torchcaches import CACHES

ANY_ROUND = Reenters(Reentry.ANY_WORLD, "")

KEEPS_GROUPS = {
    # Source: https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/comm/comm.py
    "deepspeed": ("deepspeed.comm.comm", "cdb"),
    # Source: https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/parallel_state.py
    "megatron.core": ("megatron.core.parallel_state", "_DATA_PARALLEL_GROUP"),
    # Source: https://github.com/facebookresearch/fairscale/blob/main/fairscale/nn/model_parallel/initialize.py
    "fairscale": ("fairscale.nn.model_parallel.initialize", "_DATA_PARALLEL_GROUP"),
}
"""Frameworks that keep process groups in a variable of a module, None before: the module and the variable."""


def reenters(own: Reenters | None = None) -> Reenters:
    """Which rounds this process can go on to, by what it has used so far, or by what the script says of itself
    (`own`). Costs about a microsecond.
    """
    if lacking := CACHES.lacking():
        return Reenters(Reentry.NEVER, f"torch {torch.__version__} lacks {lacking[0]}: it may remember old groups")
    if own is not None:
        return own
    for name, (module, variable) in KEEPS_GROUPS.items():
        if getattr(sys.modules.get(module), variable, None) is not None:
            return Reenters(Reentry.NEVER, f"{name} keeps the process groups of its first round")
    return ANY_ROUND


def forget_round(part: Assignment) -> None:
    """Make frameworks forget the round before `part`, whose environment is set already."""
    if (state := sys.modules.get("accelerate.state")) is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()
    rank_zero = sys.modules.get("lightning_utilities.core.rank_zero")
    if rank_zero is not None and hasattr(rank_zero.rank_zero_only, "rank"):
        rank_zero.rank_zero_only.rank = part.rank


class Reentering:
    """What the launcher is told of the rounds that this process can go on to, by whoever beats."""

    def __init__(self, own: Reenters | None) -> None:
        """`own` is what the script says of itself; None: what is known of the frameworks in use."""
        self._own = own
        self.begin()

    def begin(self) -> None:
        """The launcher knows of nothing yet, as at the start of a round."""
        self._said = ANY_ROUND

    def say(self, tell: Callable[[Reenters], None]) -> None:
        """Where the launcher does not know yet. A framework may be imported, or used first, at any time."""
        now = reenters(self._own)
        if now != self._said:
            self._said = now
            tell(now)
