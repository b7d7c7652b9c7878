"""The ranks' agreement on who stores what of the state, on the training thread."""

from collections.abc import Set

import msgspec

from holdfast.checkpoint import manifest
from holdfast.checkpoint.claims import ChunkKey, Claim, share_out
from holdfast.checkpoint.council import Council
from holdfast.checkpoint.live import Look

_CLAIMS = msgspec.msgpack.Decoder(list[Claim])


class Shares:
    """This rank's share. The same object as long as nobody's state changes its shape."""

    def __init__(self, council: Council) -> None:
        self._council = council
        self._generation: int | None = None
        self._claims = b""
        self._digest = b""
        self._digests: list[bytes] = []
        self._share: frozenset[ChunkKey] = frozenset()

    def agree(self, look: Look) -> Set[ChunkKey]:
        """Collective. Costs one tiny exchange while nobody's state has changed its shape."""
        if look.generation != self._generation:
            self._generation = look.generation
            self._claims = msgspec.msgpack.encode(look.claims())
            self._digest = manifest.hash_block(self._claims).encode()
        digests = self._council.exchange(self._digest)
        if digests != self._digests:
            everything = [_CLAIMS.decode(each) for each in self._council.exchange(self._claims)]
            self._share = frozenset(share_out(everything)[self._council.rank])
            self._digests = digests
        return self._share

    def agreed(self, look: Look) -> Set[ChunkKey] | None:
        """What was agreed on last; None when that is not for this state any more. Not collective."""
        return self._share if look.generation == self._generation else None
