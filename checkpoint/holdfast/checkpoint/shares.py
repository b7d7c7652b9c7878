"""The ranks' agreement on who stores what of the state, on the training thread."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass, field

import msgspec

from holdfast.checkpoint import groups, manifest
from holdfast.checkpoint.claims import ChunkKey, Claim, share_out
from holdfast.checkpoint.council import Council
from holdfast.checkpoint.live import Look


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

    def __init__(self, council: Council) -> None:
        self._council = council
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
        said = self._council.exchange(msgspec.msgpack.encode((self._digest, manifest.hash_block(settings))))
        digests = [msgspec.msgpack.decode(each) for each in said]
        if len({found for _, found in digests}) > 1:
            groups.require_alike([_SETTINGS.decode(each) for each in self._council.exchange(settings)])
        shapes = [shape for shape, _ in digests]
        if shapes != self._digests:
            everything = [_HELD.decode(each) for each in self._council.exchange(self._held)]
            keys = share_out([each.claims for each in everything])[self._council.rank]
            self._share = Share(frozenset(keys), groups.joined([each.members for each in everything]))
            self._digests = shapes
        return self._share

    def agreed(self, look: Look) -> Share | None:
        """What was agreed on last; None when that is not for this state any more. Not collective."""
        return self._share if look.generation == self._generation else None
