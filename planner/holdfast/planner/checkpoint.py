"""How large a checkpoint is, how long training stands still for it, and how long it is on its way.

Source: https://arxiv.org/abs/2104.04473 (section 5.10: 13.8 TB of a trillion parameters, 273 GB/s written)
"""

from typing import Final

from holdfast.planner.layout import Training
from holdfast.planner.model import Model

SOURCE: Final = "https://arxiv.org/abs/2104.04473"


def checkpoint_bytes(model: Model, training: Training) -> float:
    """Weights that train in 16 bits, and the optimizer's state with its master weights: 14 bytes a parameter as a
    rule.
    """
    return model.trained_parameters * (2.0 + training.optimizer_bytes)


def copied_s(size: float, gpus: int, host: float) -> float:
    """How long training stands still where each GPU copies its share to host memory, at `host` bytes a second, and
    the rest goes on beside training.
    """
    return size / gpus / host


def written_s(size: float, storage: float) -> float:
    """How long all of it takes to storage, at `storage` bytes a second: training stands still so long where it
    waits for that; else no checkpoint can follow sooner.
    """
    return size / storage
