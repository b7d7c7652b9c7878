"""How far two results may lie apart that differ in the order of their sums alone."""

from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor

SUMS: Final = 32
"""Roundings of a sum that is formed in float32, in another order: they grow as the root of its length, and a
thousand terms are usual. Source: Higham, Accuracy and Stability of
Numerical Algorithms, chapter 4, https://epubs.siam.org/doi/book/10.1137/1.9780898718027"""
STORES: Final = 4
"""Roundings to a narrower dtype between layers: a sum that differs in its last bits is stored one unit apart."""


def tolerance(dtype: torch.dtype) -> float:
    """Relative to the largest value: sums formed in float32 (in float64 of float64) and stored in `dtype`."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    narrow = torch.finfo(dtype).eps > torch.finfo(wide).eps
    return SUMS * torch.finfo(wide).eps + (STORES * torch.finfo(dtype).eps if narrow else 0.0)


def coarsest(tensors: Iterable[Tensor], met: Iterable[torch.dtype] = ()) -> torch.dtype:
    """The dtype among theirs and those `met` that rounds most; float32 when none is of numbers."""
    there = {each for each in (*(each.dtype for each in tensors), *met) if each.is_floating_point}
    return max(there or {torch.float32}, key=lambda each: torch.finfo(each).eps)


def is_narrow(dtype: torch.dtype) -> bool:
    """Whether it rounds more than float32 does."""
    return torch.finfo(dtype).eps > torch.finfo(torch.float32).eps


def distance(found: Tensor, before: Tensor) -> Tensor:
    """|found - before| by element, in float64. Equal infinities and two NaNs are 0 apart, one alone infinitely."""
    one, other = found.double(), before.double()
    same = (one == other) | (one.isnan() & other.isnan())
    return torch.where(same, 0.0, torch.nan_to_num((one - other).abs(), nan=torch.inf, posinf=torch.inf))


def largest(tensor: Tensor) -> float:
    """The largest magnitude among the finite values, 0 when there is none."""
    values = tensor.detach().double()
    finite = values[values.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def moved(found: Tensor, before: Tensor, scale: float | None = None) -> float:
    """The largest distance as a share of `scale`, the largest value of both unless told."""
    if found.numel() == 0:
        return 0.0
    apart = float(distance(found, before).max())
    scale = max(largest(found), largest(before)) if scale is None else scale
    return 0.0 if apart == 0.0 else apart / scale if scale else float("inf")
