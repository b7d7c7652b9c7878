"""The inputs of the checks, and the digests of their results.

Inputs come from integer arithmetic on the host, so that they depend on no version of a random generator. Every
value is a whole number of 128ths between -127/128 and 127/128: exact in float32, bfloat16 and float16.
"""

from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np
import torch
import xxhash

from holdfast.api.drill import Spoiler

_GOLDEN_GAMMA: Final = 0x9E3779B97F4A7C15
_WORD: Final = (1 << 64) - 1


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
