"""A print of a batch: 64 bits that name its samples, whatever their order and whichever rank has which.

Each sample's bytes are hashed, and the hashes are added up modulo 2**64: so the prints of all ranks add up to that
of the step's whole batch, however many ranks share it. Two batches that differ share a print with a probability of
2**-64. This is no defence against an adversary.

Of a sample of more than `BYTES_MAX` only the beginning and the end are looked at: the same bytes on all ranks,
since they follow from the size of a sample alone.

A call per sample, and not one for all: between two steps all code is cold, and what costs is how much of it runs.
Source: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md (XXH3, 64 bits, with a seed)
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

BYTES_MAX: Final = 1 << 16
Column = Tensor | Sequence[str | bytes]
"""One entry for each sample."""


class BatchSum(NamedTuple):
    """The unsigned 64-bit `value` of `samples` samples; `tokens` is how many integers the first tensor has, None
    where it is of no two dimensions or of no integers.

    Where nobody can say which samples a batch has, `silent` says why; it is empty otherwise. Then, and where there
    are none, `value` and `samples` are 0.
    """

    value: int
    samples: int
    tokens: int | None
    silent: str = ""


class OnDevice(Exception):
    """The batch is on an accelerator: its print would have to be waited for."""


class _Unread(NamedTuple):
    """What may be the data, and has no bytes to be looked at."""

    what: str


def print_of(batch: object) -> BatchSum | None:
    """The print of `batch`: tensors, and lists of strings, in mappings, tuples and lists, samples first.

    All that are not empty have as many samples. Where they have not, as a mask of positions beside ids, or where
    something else may be the data, as numbers in a list or an object, the batch is silent: what is left may be the
    same for other samples. A number by itself and a view larger than its memory are no data. Where several samples
    are all the same, they fill a place, as padding does, and the batch is silent.

    A batch is silent, too, whose objects raise: whatever a script passes on, training does not stop for a print.

    None: there is neither a tensor nor a list of strings. Raises OnDevice when a tensor is not in host memory.
    """
    try:
        return _print_of(batch)
    except OnDevice:
        raise
    except Exception as error:  # Of the script's own tensors and mappings, or of kinds that are yet to come.
        return _silent(f"reading it raises {type(error).__name__}: {error}")


def _print_of(batch: object) -> BatchSum | None:
    columns: list[Column] = []
    unread = ""
    for leaf in _leaves(batch):
        if isinstance(leaf, _Unread):
            unread = leaf.what
        elif not isinstance(leaf, Tensor):
            columns.append(leaf)
        elif leaf.is_nested or leaf.layout is not torch.strided:
            unread = _NOT_DENSE
        # A view that repeats itself, as an expanded mask, is no data, and may be far larger than what it lies in.
        elif leaf.dim() and not (0 in leaf.stride() and leaf.nbytes > leaf.untyped_storage().nbytes()):
            if leaf.device.type != "cpu":
                raise OnDevice(str(leaf.device))
            columns.append(leaf)
    if not columns and unread != _NOT_DENSE:
        return None
    return _silent(f"it holds {unread}") if unread else _sum_of(columns)


_NOT_DENSE: Final = "a tensor that is not dense"


def _silent(why: str) -> BatchSum:
    return BatchSum(0, 0, None, why)


def _sum_of(columns: Sequence[Column]) -> BatchSum:
    full = [each for each in columns if (each.numel() if isinstance(each, Tensor) else each)]
    if not full:
        return BatchSum(0, 0, _tokens_in(columns[0]))
    counts = sorted({len(each) for each in full})
    if len(counts) > 1:
        return _silent(f"its parts count {' and '.join(map(str, counts))} samples")
    hashes = [0] * counts[0]
    for column in full:
        # What belongs to a sample is hashed with what came before it for a seed.
        hashes = [
            xxh3_64_intdigest(content, seed) for content, seed in zip(_contents(column), hashes, strict=True)
        ]
    if len(hashes) > 1 and len(set(hashes)) == 1:
        return _silent("all its samples are the same")
    return BatchSum(sum(hashes) % 2**64, len(hashes), _tokens_in(full[0]))


def _tokens_in(column: Column) -> int | None:
    if not isinstance(column, Tensor) or column.dim() != 2:
        return None
    return None if column.is_floating_point() or column.is_complex() else column.numel()


def _leaves(batch: object) -> Iterator[Column | _Unread]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for each in batch.values():
            if not isinstance(each, _NUMBER):
                yield from _leaves(each)
    elif isinstance(batch, tuple | list):
        parts = [each for each in batch if each is not None]
        if parts and all(isinstance(each, str | bytes) for each in parts):
            yield parts
        elif parts and all(isinstance(each, _NUMBER) for each in parts):
            yield _Unread("a list of numbers")
        else:
            for each in parts:
                if not isinstance(each, _NUMBER):
                    yield from _leaves(each)
    elif batch is not None:
        yield _Unread(f"a value of type {type(batch).__name__}")


_NUMBER: Final = (bool, int, float)


def _contents(column: Column) -> Iterator[memoryview | bytes]:
    """The bytes of each sample, or of its beginning and its end."""
    if not isinstance(column, Tensor):
        for text in column:
            yield _ends_of(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        return
    values = column.detach()
    if not values.is_contiguous():
        values = values.contiguous()
    if values.dtype not in _OF_NUMPY:
        values = values.resolve_conj().view(torch.uint8)
    content = memoryview(values.numpy()).cast("B")  # type: ignore[arg-type]  # NumPy's stubs do not call it a buffer
    size = len(content) // len(values)
    for start in range(0, len(content), size):
        yield _ends_of(content[start : start + size])


def _ends_of(content: memoryview | bytes) -> memoryview | bytes:
    if len(content) <= BYTES_MAX:
        return content
    return b"".join((content[: BYTES_MAX // 2], content[-BYTES_MAX // 2 :]))


_OF_NUMPY: Final = frozenset(
    (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.float64, torch.float32)
)
"""Those whose NumPy arrays are buffers of plain bytes; of others the bits are."""
