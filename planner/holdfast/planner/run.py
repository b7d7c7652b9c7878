"""What takes the time of a step, and how much of a data sheet's rates is reached."""

from typing import Final, NamedTuple

import msgspec

from holdfast.api.errors import InvalidInput
from holdfast.planner.bounds import positive
from holdfast.planner.cluster import Cluster
from holdfast.planner.layout import Layout, Training
from holdfast.planner.model import Model

MATMUL_FP8: Final = 0.46
"""Of the FP8 rate by large matmuls: what NVIDIA's published runs on H100 and B200 reached (docs/planner.md)."""


class Efficiency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much of the data sheet's rates is reached: assumptions that a measurement should replace.

    `matmul` of the GPU's dense rate by large matmuls, `flash` of its BF16 rate by fused attention, `memory` of its
    memory's rate, `links` of NVLink's.

    Of published runs `matmul` is 0.65 on A100, 0.49 to 0.6 in BF16 and 0.46 in FP8 on H100, 0.43 to 0.46 in FP8 on
    B200 (docs/planner.md).

    Source: https://arxiv.org/abs/2407.08608 (fused attention: FlashAttention-2 reaches 35% of an H100, the third
    version 75%)
    """

    matmul: float = 0.56
    flash: float = 0.5
    memory: float = 0.8
    links: float = 0.8

    def __post_init__(self) -> None:
        """Raises InvalidInput."""
        if problems := list(positive(self, "reached", self.__struct_fields__)):
            raise InvalidInput(*problems)


class Run(NamedTuple):
    """What takes the time: a model, split so, on these machines, with such a batch."""

    model: Model
    layout: Layout
    cluster: Cluster
    training: Training


def with_links(cluster: Cluster, reached: Efficiency) -> Cluster:
    """The cluster with the rate of NVLink that is reached."""
    gpu = cluster.gpu
    return msgspec.structs.replace(cluster, gpu=msgspec.structs.replace(gpu, nvlink=gpu.nvlink * reached.links))
