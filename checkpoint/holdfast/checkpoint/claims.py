"""Who writes what: every chunk is written once, however many ranks hold it."""

from collections.abc import Sequence

import msgspec

ChunkKey = tuple[str, tuple[int, ...]]
"""A chunk's name and offsets."""


class Claim(msgspec.Struct, frozen=True, order=True):
    """A rank holds this chunk of `name` (offsets are empty for objects and scalars)."""

    name: str
    offsets: tuple[int, ...]
    size_bytes: int

    @property
    def key(self) -> ChunkKey:
        return self.name, self.offsets


def share_out(claims: Sequence[Sequence[Claim]]) -> list[set[ChunkKey]]:
    """For each rank the keys of the chunks it writes, given what each rank holds.

    The largest are given out first, each to the holder with the least to write so far (the lowest rank of
    those): every rank computes the same answer.
    """
    holders: dict[Claim, list[int]] = {}
    for rank, held in enumerate(claims):
        for claim in held:
            holders.setdefault(claim, []).append(rank)
    loads = [0] * len(claims)
    shares: list[set[ChunkKey]] = [set() for _ in claims]
    for claim in sorted(holders, key=lambda claim: (-claim.size_bytes, claim.name, claim.offsets)):
        writer = min(holders[claim], key=lambda rank: (loads[rank], rank))
        loads[writer] += claim.size_bytes
        shares[writer].add(claim.key)
    return shares
