"""How many workers a node gets when the user says `gpu`, `cpu` or `auto`, counted without importing torch."""

import itertools
import os
import re
from collections.abc import Mapping
from pathlib import Path

_GPU_NODE = re.compile(r"nvidia\d+")


def gpu_count(environment: Mapping[str, str], *, devices: Path = Path("/dev")) -> int:
    """The GPUs this process may use: those CUDA_VISIBLE_DEVICES names, otherwise every NVIDIA device node.

    Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#env-vars
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # CUDA itself stops at the first entry that names no device.
        named = [entry.strip() for entry in visible.split(",")]
        return len(list(itertools.takewhile(lambda entry: entry not in ("", "-1"), named)))
    return sum(1 for entry in devices.iterdir() if _GPU_NODE.fullmatch(entry.name))


def cpu_count() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0))
