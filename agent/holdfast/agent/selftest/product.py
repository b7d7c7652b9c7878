"""Matrix products in the number formats training uses: the work of tensor cores, hashed bit for bit.

Shapes: M = N = K = `size`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from holdfast.agent.selftest.arithmetic import numbers, values
from holdfast.agent.selftest.device import Device, DeviceKind

Kernel = Callable[[], Sequence[torch.Tensor]]
"""One run of a check's arithmetic; returns what it computed, on the device."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A check that is repeated and hashed. `prepare` makes its inputs, in the child, and returns one run."""

    name: str
    prepare: Callable[[], Kernel]


_FLOATS: Final = (("bf16", torch.bfloat16), ("fp16", torch.float16))
_FP8_CAPABILITY: Final = (8, 9)  # source: https://docs.pytorch.org/ao/stable/api_ref_float8.html


class NotHere(Exception):
    """The device cannot do this by its make: nothing to test."""


def products(device: Device, size: int, seed: int) -> Iterator[Arithmetic]:
    """The products to test on `device`; one it has no hardware for raises NotHere when prepared."""
    yield Arithmetic("product-fp32", partial(_fp32, device, size, seed, "highest"))
    for name, dtype in _FLOATS:
        yield Arithmetic(f"product-{name}", partial(_float, device, size, seed, dtype))
    yield Arithmetic("product-int8", partial(_int8, device, size, seed))
    if device.kind is DeviceKind.CUDA:
        yield Arithmetic("product-tf32", partial(_fp32, device, size, seed, "high"))
        yield Arithmetic("product-fp8", partial(_fp8, device, size, seed))


def _fp32(device: Device, size: int, seed: int, precision: str) -> Kernel:
    left, right = _pair(device, size, seed, torch.float32)

    def run() -> Sequence[torch.Tensor]:
        torch.set_float32_matmul_precision(precision)
        return (left @ right,)

    return run


def _float(device: Device, size: int, seed: int, dtype: torch.dtype) -> Kernel:
    left, right = _pair(device, size, seed, dtype)
    return lambda: (left @ right,)


def _int8(device: Device, size: int, seed: int) -> Kernel:
    left = numbers((size, size), seed).to(device.torch)
    right = numbers((size, size), seed + 1).to(device.torch)
    return lambda: (torch._int_mm(left, right),)


def _fp8(device: Device, size: int, seed: int) -> Kernel:
    if torch.cuda.get_device_capability(device.index) < _FP8_CAPABILITY:
        raise NotHere("this GPU has no fp8")
    left, right = (each.to(torch.float8_e4m3fn) for each in _pair(device, size, seed, torch.float32))
    one = torch.ones((), device=device.torch)
    return lambda: (torch._scaled_mm(left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16),)


def _pair(device: Device, size: int, seed: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    left, right = values((size, size), seed), values((size, size), seed + 1)
    return left.to(device.torch, dtype), right.to(device.torch, dtype)
