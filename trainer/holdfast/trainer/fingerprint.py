"""A fingerprint of tensors: 64 bits that two ranks share when they hold the same bits, and otherwise do not.

Replicas that take the same steps hold the same parameters, bit for bit. A rank whose fingerprint differs from its
replicas' has been corrupted by its hardware, though nothing else may ever show it.

Everything is integer arithmetic modulo 2**64 over the raw words, so the result does not depend on the device,
on the number of threads, or on the order in which sums are formed; NaNs, signed zeros and subnormals are words
like any other. Large tensors are *folded* first: words are laid out as tables and only the sums of each table's
rows and columns are kept, again and again, until little is left. Folding is what touches all of the memory, and
it is two sums, which run at memory bandwidth: the second finds its table in the cache.

What escapes it. A row or column with one changed word in it cannot keep its sum, and among fewer than four
changed words of a table one always is alone in its row or its column. So a fold sees every change within one
word, of whatever bits, every swap of two words, and everything else that does not cancel in every row and in
every column. A changed word leaves two changed sums; the next fold has more columns than a table has sums, so
these never meet in one of its columns. What is left in the end is mixed, word by word with its place, by a
bijection, and summed: there two different contents agree with probability 2**-64. This is no defence against an
adversary.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import torch
from torch import Tensor

from holdfast.trainer.hostcopy import HostCopy

logger = logging.getLogger(__name__)

ROWS: Final = 16
# For each fold more than the sums that a table of the one before leaves. Primes, so that the parts of a model,
# whose sizes are round numbers, do not line up in columns; and odd, so that a flip of the top bit of all words
# changes the sum of every row. The first four are for a tensor, the others for what is left of all tensors.
COLUMNS: Final = (8191, 8209, 8231, 8263, 8287, 8311, 8329, 8353)
_OF_ONE_TENSOR: Final = 4
# Tables (1 MiB each) summed at once: they must still be in the cache when they are summed the second time, but
# each sum should be worth its launch. On a CPU it is one for each thread.
_TABLES_ON_DEVICE: Final = 16
# Bounds the memory a fold needs to a sixteenth of this (16 MiB), whatever the size of a tensor.
_PIECE_WORDS: Final = 1 << 25
_WORD_BYTES: Final = 8
_UNDER_WAY_MAX: Final = 4  # a device so far behind is given no more to do

# Signed words. Source: constants and shifts of SplitMix64's finaliser, https://prng.di.unimi.it/splitmix64.c
_GAMMA: Final = 0x9E3779B97F4A7C15 - 2**64
_FACTORS: Final = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
_SHIFTS: Final = (30, 27, 31)


def fingerprint(tensors: Mapping[str, Tensor]) -> int:
    """The unsigned 64-bit fingerprint of `tensors`, waiting for it. Of a DTensor, that of the local shard.

    Names, shapes, types and values all count, and so does the order of the tensors.
    """
    return Sketch(tensors).value()


class Sketch:
    """A fingerprint between the devices and the host: what is left to do needs a number from each device."""

    @torch.no_grad()
    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Queue the work on the tensors' devices. Never waits for them."""
        local = {name: local_part(tensor) for name, tensor in tensors.items()}
        # What is not in the words: names, types and shapes.
        said = "\n".join(f"{name} {tensor.dtype} {tuple(tensor.shape)}" for name, tensor in local.items())
        self._layout = int.from_bytes(hashlib.blake2b(said.encode(), digest_size=_WORD_BYTES).digest(), "little")
        self._totals = []  # One 64-bit number of all words on a device, for each of them.
        for device in sorted({tensor.device for tensor in local.values()}, key=str):
            # The words of one tensor at a time: where they cannot be a view, they are a copy.
            there = (tensor for tensor in local.values() if tensor.device == device)
            pieces = (piece for tensor in there for piece in torch.split(words_of(tensor), _PIECE_WORDS))
            left = torch.cat([_folded(piece, COLUMNS[:_OF_ONE_TENSOR]) for piece in pieces])
            self._totals.append(HostCopy(_sum_of_mixed(_folded(left, COLUMNS[_OF_ONE_TENSOR:]))))

    def is_there(self) -> bool:
        """Whether the devices are done."""
        return all(total.is_there() for total in self._totals)

    def value(self) -> int:
        """The fingerprint. Waits for the devices, unless `is_there`."""
        value = self._layout
        for total in self._totals:
            word = (value + int(total.value)) % 2**64
            for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):  # As `_sum_of_mixed` mixes a word.
                word = (word ^ (word >> shift)) * factor % 2**64
            value = word ^ (word >> _SHIFTS[-1])
        return value


def local_part(tensor: Tensor) -> Tensor:
    """The part of a tensor that is in this process's memory; shares that memory."""
    tensor = tensor.detach()
    # A DTensor; its module takes a second to import, and here it is not known whether there is any.
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def words_of(tensor: Tensor) -> Tensor:
    """A tensor's bits as a vector of 64-bit words, the last filled up with zeros. A view where it can be one."""
    values = tensor.contiguous().view(-1)
    if values.data_ptr() % _WORD_BYTES or values.stride(0) != 1:  # one element may have any stride
        values = values.clone(memory_format=torch.contiguous_format)
    octets = values.view(torch.uint8)
    whole = octets.numel() // _WORD_BYTES * _WORD_BYTES
    words = octets[:whole].view(torch.int64)
    if whole == octets.numel():
        return words
    last = octets.new_zeros(_WORD_BYTES)
    last[: octets.numel() - whole] = octets[whole:]
    return torch.cat((words, last.view(torch.int64)))


def _folded(words: Tensor, columns_of_folds: Iterable[int]) -> Tensor:
    """What is left after as many folds as there are tables for. A fold leaves the sums of rows and columns of all
    whole tables, then the words that fill no table.
    """
    at_once = torch.get_num_threads() if words.device.type == "cpu" else _TABLES_ON_DEVICE
    for columns in columns_of_folds:
        count = words.numel() // (ROWS * columns)
        if count == 0:
            break
        in_tables, sums_end = count * ROWS * columns, count * (ROWS + columns)
        folded = words.new_empty(sums_end + words.numel() - in_tables)
        folded[sums_end:] = words[in_tables:]
        tables = words[:in_tables].view(count, ROWS, columns)
        sums = folded[:sums_end].view(count, ROWS + columns)
        for some, into in zip(torch.split(tables, at_once), torch.split(sums, at_once), strict=True):
            # Columns first: that way round the memory is read as many streams, and the cache serves the rows.
            torch.sum(some, 1, out=into[:, ROWS:])
            torch.sum(some, 2, out=into[:, :ROWS])
        words = folded
    return words


def _sum_of_mixed(words: Tensor) -> Tensor:
    """Every word mixed with its place, summed."""
    mixed = torch.arange(1, words.numel() + 1, device=words.device) * _GAMMA + words
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        mixed = (mixed ^ _shifted(mixed, shift)) * factor
    return (mixed ^ _shifted(mixed, _SHIFTS[-1])).sum()


def _shifted(words: Tensor, by: int) -> Tensor:
    # Torch shifts signed words, and so fills with the sign.
    return (words >> by) & ((1 << (64 - by)) - 1)


Publish = Callable[[int, int, int], None]
"""Called with the step, the fingerprint and the group."""


class Replica:
    """One model's fingerprints during one round.

    They are taken on the device, behind the work already queued, and copied to pinned memory. `completed`
    publishes those that have arrived, so on an accelerator a step or more late; on the CPU at once.
    """

    def __init__(self, model: torch.nn.Module, *, every: int, part: str, publish: Publish) -> None:
        """`every` is in steps. `part` tells apart ranks whose tensors do not say what part they hold."""
        self._model = model
        self._every = every
        self._part = part
        self._publish = publish
        self._under_way: list[tuple[int, Sketch, int]] = []  # with the step and the group
        self._is_unfit = False  # it holds a kind of tensor that cannot be read as words

    def completed(self, step: int) -> None:
        """Step `step` is complete, the optimizer has stepped. Never waits, and never raises: training goes on."""
        if self._is_unfit:
            return
        try:
            self._publish_arrived()
            if step % self._every == 0 and len(self._under_way) < _UNDER_WAY_MAX:
                parameters = dict(self._model.named_parameters())
                self._under_way.append((step, Sketch(parameters), group_of(parameters, self._part)))
                self._publish_arrived()
        except Exception:
            logger.exception("parameters are not fingerprinted any more step=%d", step)
            self._is_unfit = True

    def _publish_arrived(self) -> None:
        while self._under_way and self._under_way[0][1].is_there():
            step, sketch, group = self._under_way.pop(0)
            self._publish(step, sketch.value(), group)


def group_of(parameters: Mapping[str, Tensor], part: str = "") -> int:
    """The unsigned 64-bit group of ranks that hold the same: the same names, shapes, shards and `part`.

    A DTensor says which shard it is: its place in the mesh on the dimensions over which it is sharded. Along those
    on which it is replicated the places differ and the group is the same.
    """
    said = [part]
    for name, parameter in parameters.items():
        held = f"{name} {parameter.dtype} {tuple(parameter.shape)}"
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None:
            places = zip(parameter.placements, mesh.get_coordinate() or (), strict=False)  # type: ignore[attr-defined]  # a DTensor
            shards = [
                f"{placement} {at} of {mesh.size(dimension)}"
                for dimension, (placement, at) in enumerate(places)
                if not placement.is_replicate()
            ]
            held = f"{held} {shards}"
        said.append(held)
    return int.from_bytes(hashlib.blake2b("\n".join(said).encode(), digest_size=8).digest(), "little")
