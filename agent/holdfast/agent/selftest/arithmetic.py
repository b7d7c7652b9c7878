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
from holdfast.api.torchnames import TorchName

_GOLDEN_GAMMA: Final = 0x9E3779B97F4A7C15
_WORD: Final = (1 << 64) - 1
Kernel = Callable[[], Sequence[torch.Tensor]]
"""One run of a check's arithmetic; returns what it computed, on the device."""
_HALVES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}
_PRECISIONS: Final = {"fp32": "highest", "tf32": "high"}  # of float32 products, as torch calls them
_FP8_CAPABILITY: Final = (8, 9)  # source: https://docs.pytorch.org/ao/stable/api_ref_float8.html
_WEIGHTS_A_LAYER: Final = 4

_PRIVATE: Final = {
    "int8": TorchName("torch", "_int_mm", "the self-test leaves out products of int8"),
    "fp8": TorchName("torch", "_scaled_mm", "the self-test leaves out products of fp8"),
}
NAMES: Final = tuple(_PRIVATE.values())


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
    only_gpus = ("tf32", "fp8") if device.kind is DeviceKind.CUDA else ()
    for name in ("fp32", "bf16", "fp16", "int8", *only_gpus):
        yield Arithmetic(f"product-{name}", partial(_product, device, size, seed, name))


def _product(device: Device, size: int, seed: int, name: str) -> Kernel:
    if (private := _PRIVATE.get(name)) is not None and not private.is_there:
        raise NotHere(f"this torch has no {private}")
    if name == "int8":
        left, right = (numbers((size, size), each).to(device.torch) for each in (seed, seed + 1))
        return lambda: (torch._int_mm(left, right),)
    if name == "fp8" and torch.cuda.get_device_capability(device.index) < _FP8_CAPABILITY:
        raise NotHere("this GPU has no fp8")
    dtype = _HALVES.get(name, torch.float32)
    left, right = (values((size, size), each).to(device.torch, dtype) for each in (seed, seed + 1))
    if name == "fp8":
        left, right = left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn).t()
        one = torch.ones((), device=device.torch)
        return lambda: (torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16),)

    def run() -> Sequence[torch.Tensor]:
        if name in _PRECISIONS:
            torch.set_float32_matmul_precision(_PRECISIONS[name])
        return (left @ right,)

    return run


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
    width = shape.width
    layer = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    weights = [
        (values(each, seed + place) / math.sqrt(each[0])).to(device.torch, dtype).requires_grad_()
        for place, each in enumerate([(shape.vocabulary, width), *layer * shape.layers], start=10)
    ]
    ids_BT = numbers((shape.batch, shape.tokens + 1), seed).to(torch.int64).remainder(shape.vocabulary)
    rows_BTV = functional.one_hot(ids_BT, shape.vocabulary).to(device.torch, dtype)
    given, wanted = rows_BTV[:, :-1].contiguous(), rows_BTV[:, 1:].contiguous()

    def run() -> Sequence[torch.Tensor]:
        loss = _loss(weights, given, wanted, shape.heads)
        return (loss, *torch.autograd.grad(loss, weights))

    return run


def _loss(
    weights: Sequence[torch.Tensor], given_BTV: torch.Tensor, wanted_BTV: torch.Tensor, heads: int
) -> torch.Tensor:
    embedding_VD, layers = weights[0], weights[1:]
    hidden_BTD = given_BTV @ embedding_VD
    batch, tokens, width = hidden_BTD.shape
    mask_TT = torch.ones(tokens, tokens, device=given_BTV.device, dtype=torch.bool).tril()
    for first in range(0, len(layers), _WEIGHTS_A_LAYER):
        mixing, output, widen, narrow = layers[first : first + _WEIGHTS_A_LAYER]
        mixed = (_norm(hidden_BTD) @ mixing).view(batch, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        query, key, value = mixed[0], mixed[1], mixed[2]
        scores = (query @ key.transpose(-2, -1)) / math.sqrt(width // heads)
        attention = torch.softmax(scores.masked_fill(~mask_TT, -math.inf), dim=-1)
        seen_BTD = (attention @ value).transpose(1, 2).reshape(batch, tokens, width)
        hidden_BTD = hidden_BTD + seen_BTD @ output
        hidden_BTD = hidden_BTD + functional.gelu(_norm(hidden_BTD) @ widen) @ narrow
    scores_BTV = _norm(hidden_BTD) @ embedding_VD.t()
    return -(functional.log_softmax(scores_BTV.float(), dim=-1) * wanted_BTV).sum()


def _norm(hidden_BTD: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(hidden_BTD, hidden_BTD.shape[-1:])
