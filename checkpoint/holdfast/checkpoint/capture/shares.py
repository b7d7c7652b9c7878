"""The ranks' agreement on who stores what of the state: every chunk once, however many ranks hold it."""

import dataclasses
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

import msgspec

from holdfast.checkpoint.capture import groups
from holdfast.checkpoint.capture.live import ChunkKey, Claim, Look
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.format import manifest


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


class _Held(msgspec.Struct, frozen=True):
    """What one rank says of its state."""

    claims: list[Claim]
    members: groups.Members


_HELD = msgspec.msgpack.Decoder(_Held)
_SETTINGS = msgspec.msgpack.Decoder(dict[str, str])


@dataclass(frozen=True, slots=True)
class Share:
    """What this rank stores, and the parameters of all ranks by the optimizer's groups."""

    keys: Set[ChunkKey] = frozenset()
    members: groups.Members = field(default_factory=dict)

    def whole(self, look: Look) -> Look:
        """The state as it is to be stored: with whole groups, whoever stores them."""
        own = {name: parameters for name, parameters in self.members.items() if name in look.objects}
        return dataclasses.replace(look, objects={**look.objects, **own})


class Shares:
    """This rank's share. The same object as long as nobody's state changes its shape."""

    def __init__(self, group: SaveGroup) -> None:
        self._group = group
        self._generation: int | None = None
        self._held = b""
        self._digest = b""
        self._digests: list[bytes] = []
        self._share = Share()

    def agree(self, look: Look) -> Share:
        """Collective. Costs one tiny exchange while nobody's state has changed its shape, and a second where ranks
        have other groups than others. Raises InvalidInput, on every rank alike, when two of them differ in what is
        stored of a group.
        """
        if look.generation != self._generation:
            self._generation = look.generation
            self._held = msgspec.msgpack.encode(_Held(look.claims(), look.members()))
            self._digest = manifest.hash_block(self._held).encode()
        settings = msgspec.msgpack.encode(look.settings())
        said = self._group.exchange(msgspec.msgpack.encode((self._digest, manifest.hash_block(settings))))
        digests = [msgspec.msgpack.decode(each) for each in said]
        if len({found for _, found in digests}) > 1:
            groups.require_alike([_SETTINGS.decode(each) for each in self._group.exchange(settings)])
        shapes = [shape for shape, _ in digests]
        if shapes != self._digests:
            everything = [_HELD.decode(each) for each in self._group.exchange(self._held)]
            keys = share_out([each.claims for each in everything])[self._group.rank]
            self._share = Share(frozenset(keys), groups.joined([each.members for each in everything]))
            self._digests = shapes
        return self._share

    def agreed(self, look: Look) -> Share | None:
        """What was agreed on last; None when that is not for this state any more. Not collective."""
        return self._share if look.generation == self._generation else None
