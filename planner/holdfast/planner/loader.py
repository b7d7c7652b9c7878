"""What a data loader must give: bytes a second, over all nodes.

Source: https://github.com/mlcommons/storage (storage-conf/workload: bytes of a sample, batch, time of a step)
"""

from typing import Final

from holdfast.planner.layout import Training
from holdfast.planner.model import Model

SOURCE: Final = "https://github.com/mlcommons/storage/tree/main/storage-conf/workload"
NARROW: Final = 2**16


def step_bytes(model: Model, training: Training) -> float:
    """Of one step: its tokens as numbers, 2 bytes each where the vocabulary fits them, else 4; or of each sequence
    what the question says, images with it.
    """
    if training.sample_bytes:
        return training.batch * training.sample_bytes
    return training.batch * training.sequence * (2.0 if model.vocab <= NARROW else 4.0)


def loader_rate(bytes_: float, step_s: float) -> float:
    """Bytes a second so that a step never waits."""
    return bytes_ / step_s
