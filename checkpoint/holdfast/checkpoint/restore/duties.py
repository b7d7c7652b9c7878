"""Who reads what of a checkpoint, so that no byte is read twice and nobody waits for another without need.

Every rank says which blocks it needs; from that, every rank computes the same answer:

- A block that one rank needs is read by that rank. One that nobody needs is looked at by somebody all the same: a
  checkpoint that is said to be intact is intact.
- A block that several ranks need is read once on a host and handed on through memory that the host's ranks share.
  Between hosts it is sent where most of it is needed, and read again where it is not: a few rows are not worth a
  whole block on the network.
- What is small and needed by several ranks (step counters, learning rates) would make every block one that all
  need. It goes another way: whoever reads the block that it lies in tells everybody.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

Runs = tuple[tuple[int, int], ...]
"""Sorted numbers as (first, how many in a row)."""


class Demand(msgspec.Struct, frozen=True):
    """What one rank needs. `blocks` are those it needs for more than what is small; `bulk` those of them it needs
    at least half of. `smalls` are numbers of small entries. Ranks of the same `host` share memory.
    """

    host: str
    blocks: Runs
    bulk: Runs
    smalls: Runs


@dataclass(frozen=True, slots=True)
class Carriage:
    """A common block and who has it first on each host: `reader` from storage, `receivers` from the reader,
    `rereaders` from storage as well. Others of a host take it from the one of their host.
    """

    block: int
    reader: int
    receivers: tuple[int, ...]
    rereaders: tuple[int, ...]

    @property
    def carriers(self) -> tuple[int, ...]:
        return self.reader, *self.receivers, *self.rereaders


Wave = tuple[Carriage, ...]
"""Common blocks that are in memory at the same time."""


@dataclass(frozen=True, slots=True)
class Duties:
    """`readers`: by block, who reads it first. `waves`: the blocks that several ranks need. `common`: the numbers
    of the small entries that several ranks need, ascending.
    """

    readers: tuple[int, ...]
    waves: tuple[Wave, ...]
    common: tuple[int, ...]

    def alone(self, rank: int) -> list[int]:
        """The blocks that `rank` reads for itself, or only to have them looked at."""
        shared = {each.block for wave in self.waves for each in wave}
        return [block for block, reader in enumerate(self.readers) if reader == rank and block not in shared]


def share_out(demands: Sequence[Demand], *, blocks: int, smalls: Sequence[Sequence[int]], slots: int) -> Duties:
    """`demands` are those of all ranks, `smalls` the blocks that each small entry lies in. In a wave a rank has no
    more than `slots` blocks.
    """
    common, owners = _divide(demands, len(smalls))
    needers: list[list[int]] = [[] for _ in range(blocks)]
    for rank, demand in enumerate(demands):
        own = {block for small in owners.get(rank, ()) for block in smalls[small]}
        for block in own.union(numbers(demand.blocks)):
            needers[block].append(rank)
    loads = [0] * len(demands)
    for those in needers:
        if len(those) == 1:
            loads[those[0]] += 1
    bulk = [frozenset(numbers(demand.bulk)) for demand in demands]
    readers, carriages = [], []
    for block, those in enumerate(needers):
        if len(those) < 2:
            readers.append(those[0] if those else block % len(demands))
            continue
        carriage = _carry(block, those, demands, bulk, loads)
        readers.append(carriage.reader)
        carriages.append(carriage)
    return Duties(readers=tuple(readers), waves=tuple(_waves(carriages, slots)), common=tuple(common))


def _divide(demands: Sequence[Demand], smalls: int) -> tuple[list[int], dict[int, list[int]]]:
    """The small entries that several ranks need, and by rank those that only it needs."""
    counts, ranks = [0] * (smalls + 1), [0] * (smalls + 1)
    for rank, demand in enumerate(demands):
        for first, length in demand.smalls:
            counts[first] += 1
            counts[first + length] -= 1
            ranks[first] += rank
            ranks[first + length] -= rank
    common: list[int] = []
    owners: dict[int, list[int]] = {}
    for small, (count, total) in enumerate(zip(accumulate(counts), accumulate(ranks), strict=True)):
        if count > 1:
            common.append(small)
        elif count == 1:  # Then the sum of the ranks is the rank.
            owners.setdefault(total, []).append(small)
    return common, owners


def _carry(
    block: int, needers: Sequence[int], demands: Sequence[Demand], bulk: Sequence[frozenset[int]], loads: list[int]
) -> Carriage:
    """Adds to the loads. On each host, of those that need the block, the one with the least to do carries it."""
    hosts: dict[str, list[int]] = {}
    for rank in needers:
        hosts.setdefault(demands[rank].host, []).append(rank)
    carriers = {host: min(ranks, key=lambda rank: (loads[rank], rank)) for host, ranks in hosts.items()}
    for rank in carriers.values():
        loads[rank] += 1
    reader = min(carriers.values(), key=lambda rank: (loads[rank], rank))
    loads[reader] += len(carriers) > 1  # It has to read and to send.
    receivers: list[int] = []
    rereaders: list[int] = []
    for host, rank in carriers.items():
        if rank == reader:
            continue
        is_worth_it = len(hosts[host]) > 1 or block in bulk[rank]
        (receivers if is_worth_it else rereaders).append(rank)
    return Carriage(block=block, reader=reader, receivers=tuple(receivers), rereaders=tuple(rereaders))


def _waves(carriages: Iterable[Carriage], slots: int) -> Iterable[Wave]:
    """In order, each as large as the slots of every carrier allow."""
    wave: list[Carriage] = []
    taken: dict[int, int] = {}
    for carriage in carriages:
        if any(taken.get(rank, 0) == slots for rank in carriage.carriers):
            yield tuple(wave)
            wave, taken = [], {}
        wave.append(carriage)
        for rank in carriage.carriers:
            taken[rank] = taken.get(rank, 0) + 1
    if wave:
        yield tuple(wave)


def runs(found: Iterable[int]) -> Runs:
    """The numbers as runs. They may come in any order, each once."""
    spans: list[list[int]] = []
    for number in sorted(found):
        if spans and sum(spans[-1]) == number:
            spans[-1][1] += 1
        else:
            spans.append([number, 1])
    return tuple((first, length) for first, length in spans)


def numbers(those: Runs) -> Iterable[int]:
    """The reverse."""
    for first, length in those:
        yield from range(first, first + length)
