"""The ranks' agreement on who stores what of the state: every chunk once, however many ranks hold it, if they hold
the same; else each its own.

That they hold the same is proved by digests, at every agreement. What differed once counts as each rank's own for
the rest of the round. A snapshot between two agreements carries the digests, and is none where they differ.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.capture import groups
from holdfast.checkpoint.capture.content import Contents
from holdfast.checkpoint.capture.live import ChunkKey, Claim, Look
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.capture.storable import Storable
from holdfast.checkpoint.errors import SaveFailed
from holdfast.checkpoint.format import manifest
from holdfast.checkpoint.format.index import Box, Listing, StoredChunk, StoredObject, StoredTensor, merge
from holdfast.checkpoint.format.own import own_name

_LOG = logging.getLogger(__name__)

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Division:
    """For each rank, under which names it writes which chunks. `alike` are the chunks that are written once though
    several ranks hold them, by those ranks: they have to hold the same.
    """

    names: list[dict[ChunkKey, str]]
    alike: Mapping[tuple[int, ...], list[ChunkKey]]


def share_out(claims: Sequence[Sequence[Claim]], apart: frozenset[ChunkKey] = frozenset()) -> Division:
    """Given what each rank holds. Every rank computes the same answer.

    What all holders hold alike is given out largest first, each to the holder with the least to write so far (the
    lowest rank of those). What is `apart`, of several forms, or local to each rank is written by all of them, and
    so is the whole of what other ranks hold in parts.
    """
    in_parts = {claim.name for held in claims for claim in held if claim.sizes != claim.shape}
    mixed = _first_of_several_kinds(claims)
    holders: dict[ChunkKey, dict[int, Claim]] = {}
    for rank, held in enumerate(claims):
        for claim in held:
            holders.setdefault(claim.key, {})[rank] = claim
    loads = [0] * len(claims)
    names: list[dict[ChunkKey, str]] = [{} for _ in claims]
    alike: dict[tuple[int, ...], list[ChunkKey]] = {}
    sizes = {key: max(claim.size_bytes for claim in those.values()) for key, those in holders.items()}
    for key in sorted(holders, key=lambda key: (-sizes[key], key)):
        those = holders[key]
        wholes = [
            rank
            for rank, each in those.items()
            if each.sizes == each.shape and (key[0] in in_parts or mixed.get(key[0], rank) != rank)
        ]
        for rank in wholes:
            loads[rank] += those[rank].size_bytes
            names[rank][key] = own_name(rank, *key)
            del those[rank]
        if not those:
            continue
        if len(those) == 1 or groups.is_list(key[0]):
            writers = [min(those, key=lambda rank: (loads[rank], rank))]
        elif key in apart or not _can_be_one(list(those.values())):
            writers = list(those)
        else:
            writers = [min(those, key=lambda rank: (loads[rank], rank))]
            alike.setdefault(tuple(those), []).append(key)
        for rank in writers:
            loads[rank] += those[rank].size_bytes
            names[rank][key] = key[0] if rank == writers[0] else own_name(rank, *key)
    return Division(names, alike)


def _first_of_several_kinds(claims: Sequence[Sequence[Claim]]) -> dict[str, int]:
    """Names under which ranks hold what can be no one thing, tensors of several dims or something else, and which
    rank is the first that holds it.
    """
    kinds: dict[str, set[tuple[object, ...]]] = {}
    first: dict[str, int] = {}
    for rank, held in enumerate(claims):
        for claim in held:
            if claim.sizes == claim.shape:
                kinds.setdefault(claim.name, set()).add((bool(claim.dtype), claim.offsets))
                first.setdefault(claim.name, rank)
    return {name: rank for name, rank in first.items() if len(kinds[name]) > 1}


def _can_be_one(claims: Sequence[Claim]) -> bool:
    """Whether what several ranks hold may be the same."""
    return len({each.form for each in claims}) == 1 and not any(each.is_local for each in claims)


_Word = tuple[bytes, str, tuple[str, str, str] | None]
"""Digests of a rank's claims and of its settings, and what it cannot store: field, value and fix."""


class _Held(msgspec.Struct, frozen=True):
    """What one rank says of its state."""

    claims: list[Claim]
    members: groups.Members


@dataclass(frozen=True, slots=True)
class Share:
    """What this rank stores and under which names, the parameters of all ranks by the optimizer's groups, and what
    it has to hold like others, by a name for those others.
    """

    names: Mapping[ChunkKey, str] = field(default_factory=dict)
    members: groups.Members = field(default_factory=dict)
    alike: Mapping[str, Sequence[ChunkKey]] = field(default_factory=dict)

    def whole(self, look: Look) -> Look:
        """The state as it is to be stored: with whole groups, whoever stores them."""
        own = {name: parameters for name, parameters in self.members.items() if name in look.objects}
        return replace(look, objects={**look.objects, **own})


class Shares:
    """This rank's share. The same object as long as nobody's state changes its shape and what is held alike stays
    so.
    """

    def __init__(self, group: SaveGroup) -> None:
        self._group = group
        self._contents = Contents()
        self._generation: int | None = None
        self._held = b""
        self._digest = b""
        self._digests: list[bytes] = []
        self._everything: list[_Held] = []
        self._apart: frozenset[ChunkKey] = frozenset()
        self._share = Share()
        self._storable = Storable()

    def agree(self, look: Look) -> Share:
        """Collective. Costs two tiny exchanges and a look at all that several ranks hold, while nobody's state has
        changed its shape; and another exchange where ranks have other groups or other content than others.
        Raises InvalidInput, on every rank alike, when two of them differ in what is stored of a group, or when the
        state cannot be stored.
        """
        self.settle(look)
        proof = self.proof(look)
        said = [
            msgspec.msgpack.decode(each, type=dict[str, str])
            for each in self._group.exchange(msgspec.msgpack.encode(proof))
        ]
        if differing := unequal(said):
            self._tell_apart(look, differing)
        return self._share

    def settle(self, look: Look) -> None:
        """The same, but for the content: who would store what. Collective; raises as `agree`."""
        fault = self._storable.fault(look.objects)
        if look.generation != self._generation:
            self._generation = look.generation
            self._held = msgspec.msgpack.encode(_Held(look.claims(), look.members()))
            self._digest = manifest.hash_block(self._held).encode()
        settings = msgspec.msgpack.encode(look.settings())
        word = msgspec.msgpack.encode((self._digest, manifest.hash_block(settings), fault))
        said = [msgspec.msgpack.decode(each, type=_Word) for each in self._group.exchange(word)]
        for rank, (_, _, problem) in enumerate(said):
            if problem is not None:
                name, value, fix = problem
                raise InvalidInput(Problem(field=name, value=f"rank {rank}: {value}", fix=fix))
        if len({found for _, found, _ in said}) > 1:
            told = self._group.exchange(settings)
            groups.require_alike([msgspec.msgpack.decode(each, type=dict[str, str]) for each in told])
        shapes = [shape for shape, _, _ in said]
        if shapes != self._digests:
            self._everything = [
                msgspec.msgpack.decode(each, type=_Held) for each in self._group.exchange(self._held)
            ]
            self._require_whole(self._divide())
            self._digests = shapes

    def agreed(self, look: Look) -> Share | None:
        """What was agreed on last; None when that is not for this state any more. Not collective."""
        return self._share if look.generation == self._generation else None

    def proof(self, look: Look) -> dict[str, str]:
        """What this rank holds of all that others have to hold alike, for each set of them as a digest."""
        return {whose: self._contents.of_all(look, keys) for whose, keys in self._share.alike.items()}

    def _divide(self) -> Division:
        division = share_out([each.claims for each in self._everything], self._apart)
        rank = self._group.rank
        alike = {
            manifest.hash_block(repr(ranks).encode())[:16]: keys
            for ranks, keys in division.alike.items()
            if rank in ranks
        }
        members = groups.joined([each.members for each in self._everything])
        self._share = Share(division.names[rank], members, alike)
        return division

    def _tell_apart(self, look: Look, differing: frozenset[str]) -> None:
        """Find what ranks hold in different content: from now on it is each rank's own. Collective."""
        mine = {whose: keys for whose, keys in self._share.alike.items() if whose in differing}
        found = {whose: self._contents.of_each(look, keys) for whose, keys in mine.items()}
        said = [
            msgspec.msgpack.decode(each, type=dict[str, tuple[list[ChunkKey], list[bytes]]])
            for each in self._group.exchange(
                msgspec.msgpack.encode({whose: (mine[whose], digests) for whose, digests in found.items()})
            )
        ]
        known: dict[ChunkKey, bytes] = {}
        apart = set(self._apart)
        for each in said:
            for keys, digests in each.values():
                apart |= {
                    key
                    for key, digest in zip(keys, digests, strict=True)
                    if known.setdefault(key, digest) != digest
                }
        names = sorted({name for name, _ in apart - self._apart})
        if self._group.rank == 0:
            _LOG.info(
                "ranks hold these in different content, each keeps its own count=%d names=%s",
                len(names),
                ",".join(names[:_SHOWN]),
            )
        self._apart = frozenset(apart)
        self._divide()

    def _require_whole(self, division: Division) -> None:
        """Raises InvalidInput where what the ranks hold cannot be one state: every rank sees the same."""
        try:
            merge(
                _listing(held.claims, names) for held, names in zip(self._everything, division.names, strict=True)
            )
        except SaveFailed as error:
            fix = "shard a tensor over one mesh on all ranks, or give it a name of its own on each"
            raise InvalidInput(Problem(field="state", value=str(error), fix=fix)) from error


def unequal(said: Sequence[Mapping[str, str]]) -> frozenset[str]:
    """Given the proofs of all ranks, for which sets of ranks they differ."""
    known: dict[str, str] = {}
    return frozenset(
        whose for proof in said for whose, digest in proof.items() if known.setdefault(whose, digest) != digest
    )


def _listing(claims: Sequence[Claim], names: Mapping[ChunkKey, str]) -> Listing:
    """What a save would write, nowhere yet."""
    entries: dict[str, StoredTensor | StoredObject] = {}
    for claim in claims:
        name = names.get(claim.key)
        if name != claim.name:  # what a rank writes under a name of its own is whole by itself
            continue
        box = Box(claim.offsets, claim.sizes)
        chunk = StoredChunk(file="f", start=0, length_bytes=0, payload=0, box=box)
        entries[name] = (
            StoredTensor(claim.dtype, claim.shape, (chunk,)) if claim.dtype else StoredObject("f", 0, 0)
        )
    return Listing(dict(entries), {})
