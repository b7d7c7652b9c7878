"""Stand-ins for what torchtitan asks of an accelerator and of a nightly torch: for this bench alone.

Three things of torchtitan 0.3 do not run without: flex attention has no backward pass on a CPU, gloo cannot scale
what it adds up, and released torch has no `torch.distributed.set_timeout`.
"""

import collections
import sys
import types

import torch
import torch.distributed as dist


class _Host(types.ModuleType):
    """The host as a device: one, of 8 GiB, whose memory nobody counts."""

    def __getattr__(self, name):
        return getattr(torch.cpu, name)

    def set_device(self, device):
        pass

    def device_count(self):
        return 1

    def current_device(self):
        return 0

    def synchronize(self, *device):
        pass

    def get_device_name(self, *device):
        return "cpu"

    def get_device_properties(self, *device):
        return types.SimpleNamespace(total_memory=8 << 30, name="cpu")

    def reset_peak_memory_stats(self, *device):
        pass

    def empty_cache(self):
        pass

    def memory_stats(self, *device):
        return collections.defaultdict(int)


def allow():
    """To be called before anything else of torchtitan is imported; what a warm parent has is told, too."""
    from torchtitan.tools import utils

    utils.device_type, utils.device_module = host = "cpu", _Host("cpu")
    for name, module in list(sys.modules.items()):
        if name.startswith("torchtitan.") and hasattr(module, "device_type"):
            module.device_type, module.device_module = host
    dist.set_timeout = lambda *words: None


def attend_plainly(config):
    """Instead of flex attention, torch's scaled dot product."""
    from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention

    for _, _, parent, name in list(config.model_spec.model.traverse(FlexAttention.Config)):
        setattr(parent, name, ScaledDotProductAttention.Config())


def add_up_plainly(trainer):
    """Gradients are added up by gloo, and scaled by torch."""
    from torch.distributed.fsdp import FSDPModule

    for part in trainer.model_parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
