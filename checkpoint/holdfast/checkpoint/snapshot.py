"""A rank's share of the state, copied into host memory as the bytes of its checkpoint file.

The copy runs on the training thread and is all that a save costs it. The memory is touched once and reused:
fresh pages cost several times the copy itself.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

import torch

from holdfast.checkpoint import pinning
from holdfast.checkpoint.claims import ChunkKey
from holdfast.checkpoint.copying import Copier
from holdfast.checkpoint.index import Stored
from holdfast.checkpoint.layout import Layout, lay_out
from holdfast.checkpoint.live import Look
from holdfast.checkpoint.packing import Packer

Paths = Mapping[str, tuple[str | int, ...]]


class Room(Protocol):
    """Memory for an image: page-aligned, already touched. An `Arena` is some, `PrivateMemory` is other."""

    @property
    def image(self) -> memoryview: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One rank's share of the state after `step` steps. Valid until its room is given to another one.

    `image` is exactly what the file called `file` has to hold; `entries` and `paths` are as in `Part`.
    """

    step: int
    batches: int
    file: str
    image: memoryview
    entries: Mapping[str, Stored]
    paths: Paths


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
            if any(shard.local.is_cuda for shard in draft.look.shards.values()):
                pinning.pin(room, image)
            draft.layout.frame(image)
            self._framed[room] = draft.layout
        end = draft.layout.tensor_bytes
        for packed in draft.objects.values():
            room.image[end : end + len(packed)] = packed
            end += len(packed)
        shards = draft.look.shards
        self._copier.copy([(slot, shards[slot.name].local) for slot in draft.layout.slots], image)
        return Snapshot(
            step=step,
            batches=batches,
            file=self._file,
            image=room.image[: draft.image_bytes],
            entries=draft.entries,
            paths={name: draft.look.paths[name] for name in draft.entries},
        )

    def _layout(self, look: Look, share: Set[ChunkKey]) -> Layout:
        known = self._laid_out
        if known is not None and known[0] == look.generation and known[1] is share:
            return known[2]
        layout = lay_out(self._file, look.shards, share)
        self._laid_out = look.generation, share, layout
        return layout
