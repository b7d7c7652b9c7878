"""Real GPUs as their makers' data sheets give them: dense rates, in FLOP/s and bytes/s."""

from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.api.errors import InvalidInput, Problem
from holdfast.planner.bounds import not_negative, positive


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU. Rates are dense, without sparsity; `nvlink` is in one direction, of all links together; 0: it has
    none. `domain` is how many NVLink joins across nodes; 0: those of a node. `mesh`: each GPU has a link to each
    other in place of a switch, so that fewer GPUs have less.
    """

    name: str
    bf16: float
    memory: float
    memory_rate: float
    nvlink: float
    fp8: float = 0.0
    domain: int = 0
    mesh: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        """Raises InvalidInput."""
        rates = positive(self, "cluster.gpu", ("bf16", "memory", "memory_rate"))
        if problems := [*rates, *not_negative(self, "cluster.gpu", ("nvlink", "fp8", "domain"))]:
            raise InvalidInput(*problems)

    @property
    def balance(self) -> float:
        """FLOP for each byte read at which a BF16 matmul is bound by neither."""
        return self.bf16 / self.memory_rate


_A100: Final = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
_H100: Final = "https://www.nvidia.com/en-us/data-center/h100/"
_CATALOGUE: Final = (
    Gpu("A100-40GB", bf16=312e12, memory=40e9, memory_rate=1555e9, nvlink=300e9, source=_A100),
    Gpu("A100-80GB", bf16=312e12, memory=80e9, memory_rate=2039e9, nvlink=300e9, source=_A100),
    Gpu("H100-80GB", bf16=989e12, fp8=1979e12, memory=80e9, memory_rate=3350e9, nvlink=450e9, source=_H100),
    # NVIDIA has no page of it: an H100 whose NVLink has 8 of its 18 links, 400 GB/s both ways together.
    # Source: https://arxiv.org/abs/2412.19437 (section 3.2.2: NVLink of 160 GB/s as reached)
    Gpu("H800-80GB", bf16=989e12, fp8=1979e12, memory=80e9, memory_rate=3350e9, nvlink=200e9, source=_H100),
    Gpu(
        "H200-141GB",
        bf16=989e12,
        fp8=1979e12,
        memory=141e9,
        memory_rate=4800e9,
        nvlink=450e9,
        source="https://www.nvidia.com/en-us/data-center/h200/",
    ),
    # The page has 8 TB/s of memory; the bus that the device tells of comes to 7.7.
    # Source: https://github.com/pytorch/ao/pull/4002
    Gpu(
        "B200-180GB",
        bf16=2250e12,
        fp8=4500e12,
        memory=180e9,
        memory_rate=8000e9,
        nvlink=900e9,
        source="https://www.nvidia.com/en-us/data-center/dgx-b200/",
    ),
    Gpu(
        "GB200-186GB",
        bf16=2500e12,
        fp8=5000e12,
        memory=186e9,
        memory_rate=8000e9,
        nvlink=900e9,
        domain=72,
        source="https://www.nvidia.com/en-us/data-center/gb200-nvl72/",
    ),
    Gpu(
        "L40S-48GB",
        bf16=362e12,
        fp8=733e12,
        memory=48e9,
        memory_rate=864e9,
        nvlink=0.0,
        source="https://www.nvidia.com/en-us/data-center/l40s/",
    ),
    Gpu(
        "MI325X-256GB",
        bf16=1307e12,
        fp8=2615e12,
        memory=256e9,
        memory_rate=6000e9,
        nvlink=448e9,
        mesh=True,
        source="https://www.amd.com/en/products/accelerators/instinct/mi300/mi325x.html",
    ),
    Gpu(
        "MI300X-192GB",
        bf16=1307e12,
        fp8=2615e12,
        memory=192e9,
        memory_rate=5300e9,
        nvlink=448e9,
        mesh=True,
        source="https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html",
    ),
)
GPUS: Final[Mapping[str, Gpu]] = {each.name: each for each in _CATALOGUE}


def gpu_of(name: str, field: str) -> Gpu:
    """The GPU of that name, also by its beginning (`H100`). Raises InvalidInput, which names `field`."""
    wanted = name.lower()
    found = [each for each in _CATALOGUE if each.name.lower().startswith(wanted)]
    exact = [each for each in found if each.name.lower() == wanted]
    if len(exact or found) != 1:
        raise InvalidInput(Problem(field, name, f"give one of {', '.join(GPUS)}, or the numbers of yours"))
    return (exact or found)[0]
