"""A print of a batch: 64 bits that name its samples, whatever their order and whichever rank has which.

Each sample's bytes are hashed, and the hashes are added up modulo 2**64: so the prints of all ranks add up to that
of the step's whole batch, however many ranks share it. Two batches that differ share a print with a probability of
2**-64. This is no defence against an adversary.

Of a sample of more than `BYTES_MAX` only the beginning and the end are looked at: the same bytes on all ranks,
since they follow from the size of a sample alone.

A call per sample, and not one for all: between two steps all code is cold, and what costs is how much of it runs.
Source: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md (XXH3, 64 bits, with a seed)
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

BYTES_MAX: Final = 1 << 16


class BatchSum(NamedTuple):
    """The unsigned 64-bit `value` of `samples` samples; `tokens` is how many integers the first tensor has, None
    where it is of no two dimensions or of no integers.
    """

    value: int
    samples: int
    tokens: int | None


class OnDevice(Exception):
    """The batch is on an accelerator: its print would have to be waited for."""


def print_of(batch: object) -> BatchSum | None:
    """The print of `batch`: a tensor, or tensors in mappings, tuples and lists, whose first dimension is samples.

    The first tensor says how many samples there are; one of another first dimension does not count, and neither
    does what is no dense tensor, or a view larger than its memory. None: there is no tensor. Raises OnDevice when
    one is not in host memory.
    """
    hashes: list[int] = []
    first: Tensor | None = None
    for leaf in _tensors(batch):
        if leaf.layout is not torch.strided or not leaf.dim():
            continue
        # A view that repeats itself, as an expanded mask, is no data, and may be far larger than what it lies in.
        if 0 in leaf.stride() and leaf.nbytes > leaf.untyped_storage().nbytes():
            continue
        if leaf.device.type != "cpu":
            raise OnDevice(str(leaf.device))
        if first is None:
            first, hashes = leaf, [0] * len(leaf)
        elif len(leaf) != len(first):
            continue
        if leaf.numel():
            # What belongs to a sample is hashed with what came before it for a seed.
            hashes = [
                xxh3_64_intdigest(content, seed) for content, seed in zip(_contents(leaf), hashes, strict=True)
            ]
    if first is None:
        return None
    is_tokens = first.dim() == 2 and not first.is_floating_point() and not first.is_complex()
    return BatchSum(sum(hashes) % 2**64, len(first), first.numel() if is_tokens else None)


def _tensors(batch: object) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for each in batch.values():
            yield from _tensors(each)
    elif isinstance(batch, tuple | list):
        for each in batch:
            yield from _tensors(each)


def _contents(values: Tensor) -> Iterator[memoryview | bytes]:
    """The bytes of each sample, or of its beginning and its end."""
    values = values.detach()
    if not values.is_contiguous():
        values = values.contiguous()
    if values.dtype not in _OF_NUMPY:
        values = values.view(torch.uint8)
    content = memoryview(values.numpy()).cast("B")  # type: ignore[arg-type]  # NumPy's stubs do not call it a buffer
    size = len(content) // len(values)
    for start in range(0, len(content), size):
        if size <= BYTES_MAX:
            yield content[start : start + size]
        else:
            end = start + size
            yield b"".join((content[start : start + BYTES_MAX // 2], content[end - BYTES_MAX // 2 : end]))


_OF_NUMPY: Final = frozenset(
    (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.float64, torch.float32)
)
"""Those whose NumPy arrays are buffers of plain bytes; of others the bits are."""
