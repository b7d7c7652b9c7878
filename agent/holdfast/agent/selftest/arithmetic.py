"""What is computed and hashed: matrix products in the number formats training uses, and a small transformer.

Inputs come from integer arithmetic on the host, so that they depend on no version of a random generator. Every
value is a whole number of 128ths between -127/128 and 127/128: exact in float32, bfloat16 and float16.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Final

import numpy as np
import torch
import xxhash
from torch.nn import functional

from holdfast.agent.selftest.device import Device, DeviceKind
from holdfast.api.drill import Spoiler

_GOLDEN_GAMMA: Final = 0x9E3779B97F4A7C15
_WORD: Final = (1 << 64) - 1
Kernel = Callable[[], Sequence[torch.Tensor]]
"""One run of a check's arithmetic; returns what it computed, on the device."""
_FLOATS: Final = (("bf16", torch.bfloat16), ("fp16", torch.float16))
_FP8_CAPABILITY: Final = (8, 9)  # source: https://docs.pytorch.org/ao/stable/api_ref_float8.html
_WEIGHTS_A_LAYER: Final = 4


def numbers(shape: Sequence[int], seed: int) -> torch.Tensor:
    """Whole numbers between -127 and 127 (int8, on the host) that look random: the same for a seed, anywhere.

    Source: the finaliser of splitmix64, https://prng.di.unimi.it/splitmix64.c
    """
    place = np.arange(1, prod(shape) + 1, dtype=np.uint64) + np.uint64((seed * 0x632BE59BD9B4E019) & _WORD)
    mixed = place * np.uint64(_GOLDEN_GAMMA)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    whole = (mixed % np.uint64(255)).astype(np.int16) - 127
    return torch.from_numpy(whole.astype(np.int8).reshape(tuple(shape)))


def values(shape: Sequence[int], seed: int) -> torch.Tensor:
    """`numbers` as 128ths (float32, on the host)."""
    return numbers(shape, seed).to(torch.float32) / 128.0


def raw(outputs: Sequence[torch.Tensor]) -> bytearray:
    """The bytes of `outputs` in their order, fetched from the device."""
    return bytearray().join(_bytes(each) for each in outputs)


def digest(outputs: Sequence[torch.Tensor], spoiler: Spoiler) -> str:
    """128 bits that differ when any bit of `outputs` does. Source: XXH3, https://github.com/Cyan4973/xxHash"""
    hasher = xxhash.xxh3_128()
    if spoiler.is_idle:
        for each in outputs:
            hasher.update(_bytes(each))
    else:
        content = raw(outputs)
        spoiler.spoil(content)
        hasher.update(content)
    return hasher.hexdigest()


def _bytes(output: torch.Tensor) -> memoryview:
    return output.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().data


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A check that is repeated and hashed. `prepare` makes its inputs, in the child, and returns one run."""

    name: str
    prepare: Callable[[], Kernel]


class NotHere(Exception):
    """The device cannot do this by its make: nothing to test."""


def products(device: Device, size: int, seed: int) -> Iterator[Arithmetic]:
    """Products of matrices of `size` by `size`; one it has no hardware for raises NotHere when prepared."""
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


@dataclass(frozen=True, slots=True)
class Shape:
    """How large the model is."""

    batch: int
    tokens: int
    width: int
    heads: int
    layers: int
    vocabulary: int


def minimodel(device: Device, shape: Shape, seed: int, dtype: torch.dtype) -> Kernel:
    """A small transformer, forward and backward on fixed input: one run is a loss and all gradients.

    Every step is deterministic: rows are looked up by a product with one-hot rows, not by scattering.
    Shapes: B batch, T tokens, D width, H heads, V vocabulary.
    """
    weights = [weight.to(device.torch, dtype).requires_grad_() for weight in _weights(shape, seed)]
    ids_BT = numbers((shape.batch, shape.tokens + 1), seed).to(torch.int64).remainder(shape.vocabulary)
    rows_BTV = functional.one_hot(ids_BT, shape.vocabulary).to(device.torch, dtype)
    given, wanted = rows_BTV[:, :-1].contiguous(), rows_BTV[:, 1:].contiguous()

    def run() -> Sequence[torch.Tensor]:
        loss = _loss(weights, given, wanted, shape)
        return (loss, *torch.autograd.grad(loss, weights))

    return run


def _weights(shape: Shape, seed: int) -> list[torch.Tensor]:
    width = shape.width
    shapes = [(shape.vocabulary, width)]
    for _ in range(shape.layers):
        shapes += [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    return [values(each, seed + place) / math.sqrt(each[0]) for place, each in enumerate(shapes, start=10)]


def _loss(
    weights: Sequence[torch.Tensor], given_BTV: torch.Tensor, wanted_BTV: torch.Tensor, shape: Shape
) -> torch.Tensor:
    embedding_VD, layers = weights[0], weights[1:]
    hidden_BTD = given_BTV @ embedding_VD
    mask_TT = torch.ones(shape.tokens, shape.tokens, device=given_BTV.device, dtype=torch.bool).tril()
    for first in range(0, len(layers), _WEIGHTS_A_LAYER):
        mixing, output, widen, narrow = layers[first : first + _WEIGHTS_A_LAYER]
        hidden_BTD = hidden_BTD + _attention(_norm(hidden_BTD), mixing, mask_TT, shape.heads) @ output
        hidden_BTD = hidden_BTD + functional.gelu(_norm(hidden_BTD) @ widen) @ narrow
    scores_BTV = _norm(hidden_BTD) @ embedding_VD.t()
    return -(functional.log_softmax(scores_BTV.float(), dim=-1) * wanted_BTV).sum()


def _attention(hidden_BTD: torch.Tensor, mixing: torch.Tensor, mask_TT: torch.Tensor, heads: int) -> torch.Tensor:
    batch, tokens, width = hidden_BTD.shape
    mixed = (hidden_BTD @ mixing).view(batch, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    query, key, value = mixed[0], mixed[1], mixed[2]
    scores = (query @ key.transpose(-2, -1)) / math.sqrt(width // heads)
    weights = torch.softmax(scores.masked_fill(~mask_TT, -math.inf), dim=-1)
    return (weights @ value).transpose(1, 2).reshape(batch, tokens, width)


def _norm(hidden_BTD: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(hidden_BTD, hidden_BTD.shape[-1:])
