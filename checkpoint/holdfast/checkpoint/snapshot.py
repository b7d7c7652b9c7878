"""A rank's share of the state, copied into host memory as the bytes of its checkpoint file.

The copy runs on the training thread and is all that a save costs it. The memory is touched once and reused:
fresh pages cost several times the copy itself.
"""

import pickle
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

import torch

from holdfast.checkpoint import archive, pinning
from holdfast.checkpoint.claims import ChunkKey
from holdfast.checkpoint.copying import Copier, Moves, plan
from holdfast.checkpoint.index import Stored
from holdfast.checkpoint.layout import Layout, lay_out
from holdfast.checkpoint.live import Look
from holdfast.checkpoint.shard import Shard

_PLAIN = (type(None), bool, int, float, str, tuple, list)


class Room(Protocol):
    """Memory for an image: page-aligned, already touched. An `Arena` is some, `PrivateMemory` is other."""

    @property
    def image(self) -> memoryview: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One rank's share of the state after `step` steps. Valid until its room is given to another one.

    `image` is exactly what the file called `file` has to hold; `entries` and `paths` are as in `Part`. `healthy`
    is whether the rank's last loss and gradient norm were finite, None when it could not tell.
    """

    step: int
    batches: int
    file: str
    image: memoryview
    entries: Mapping[str, Stored]
    paths: Mapping[str, tuple[str | int, ...]]
    healthy: bool | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A snapshot that is to be copied yet: how it will be laid out, and how large it will be."""

    look: Look
    layout: Layout
    objects: Mapping[str, bytes]
    entries: Mapping[str, Stored]
    image_bytes: int


class Stage:
    """Makes snapshots of rank `rank`."""

    def __init__(self, rank: int) -> None:
        self._file = f"__{rank}_0.distcp"
        self._copier = Copier()
        self._packer = Packer()
        self._laid_out: tuple[int, Set[ChunkKey], Layout] | None = None
        self._moves: tuple[Layout, Mapping[str, Shard], int, Moves] | None = None
        self._framed: WeakKeyDictionary[Room, Layout] = WeakKeyDictionary()

    def draft(self, look: Look, share: Set[ChunkKey]) -> Draft:
        """What `share` asks for of the state that `look` sees. Raises InvalidInput for what cannot be packed."""
        layout = self._layout(look, share)
        objects = {
            name: self._packer.pack(name, value) for name, value in look.objects.items() if (name, ()) in share
        }
        entries, size = layout.place(objects)
        return Draft(look=look, layout=layout, objects=objects, entries=entries, image_bytes=size)

    def take(self, draft: Draft, room: Room, *, step: int, batches: int) -> Snapshot:
        """Copy the state into `room`, which is large enough; on return the state may change."""
        image = torch.frombuffer(room.image, dtype=torch.uint8)
        if self._framed.get(room) is not draft.layout:
            if any(shard.local.is_cuda for shard in draft.look.held.values()):
                pinning.pin(room, image)
            draft.layout.frame(room.image)
            self._framed[room] = draft.layout
        end = draft.layout.tensor_bytes
        for packed in draft.objects.values():
            room.image[end : end + len(packed)] = packed
            end += len(packed)
        self._copier.copy(_moves(draft.layout, draft.look.given), image)
        self._copier.copy(self._moves_of_held(draft.layout, draft.look), image)
        return Snapshot(
            step=step,
            batches=batches,
            file=self._file,
            image=room.image[: draft.image_bytes],
            entries=draft.entries,
            paths={**draft.layout.paths, **{name: draft.look.paths[name] for name in draft.objects}},
        )

    def _layout(self, look: Look, share: Set[ChunkKey]) -> Layout:
        known = self._laid_out
        if known is not None and known[0] == look.generation and known[1] is share:
            return known[2]
        layout = lay_out(self._file, look.shards, look.paths, share)
        self._laid_out = look.generation, share, layout
        return layout

    def _moves_of_held(self, layout: Layout, look: Look) -> Moves:
        known = self._moves
        if known is not None:
            known_layout, held, revision, moves = known
            if known_layout is layout and held is look.held and revision == look.revision:
                return moves
        moves = _moves(layout, look.held)
        self._moves = layout, look.held, look.revision, moves
        return moves


def _moves(layout: Layout, shards: Mapping[str, Shard]) -> Moves:
    """Of those of `shards` that have a place in the layout."""
    slots = layout.slots
    return plan((slots[name], shard.local) for name, shard in shards.items() if name in slots)


# Objects as archives, packed anew only when they have changed.


class Packer:
    """Most of an optimizer's settings never change, and packing one costs as much as copying a megabyte."""

    def __init__(self) -> None:
        self._packed: dict[str, tuple[bytes, bytes]] = {}

    def pack(self, name: str, value: object) -> bytes:
        """The archive of what is called `name` and now is `value`."""
        if not isinstance(value, _PLAIN):
            return archive.pack_object(value)
        content = pickle.dumps(value)
        known = self._packed.get(name)
        if known is None or known[0] != content:
            known = content, archive.pack_object(value)
            self._packed[name] = known
        return known[1]
