"""Lets Accelerate shard on a machine without accelerators, where it takes FSDP for DDP: for this bench alone.

Source: https://github.com/huggingface/accelerate/blob/main/src/accelerate/state.py (AcceleratorState)
"""

import torch.distributed as dist
from accelerate import state
from accelerate.utils import DistributedType


def allow() -> None:
    """From now on a plugin for FSDP is heeded here, too. A world of one has nothing to shard."""
    given = state.AcceleratorState.__init__

    def made(self, *arguments, fsdp_plugin=None, **more):
        given(self, *arguments, fsdp_plugin=fsdp_plugin, **more)
        if fsdp_plugin is not None and dist.is_initialized():
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
            # Every further AcceleratorState takes it from there.
            state.PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    state.AcceleratorState.__init__ = made
