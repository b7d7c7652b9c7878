"""Where everything lies in the image of a rank's checkpoint file: archives of tensor chunks, then objects."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import torch

from holdfast.checkpoint import archive
from holdfast.checkpoint.claims import ChunkKey
from holdfast.checkpoint.index import Box, Stored, StoredChunk, StoredObject, StoredTensor
from holdfast.checkpoint.shard import Shard

_ALIGNMENT_BYTES = 64  # That of torch's own archives: payloads stay aligned for every dtype.


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor chunk's place in the image: an archive that begins at `start`, its payload at `payload`.

    The archive ends, padded, where the next one starts.
    """

    dtype: torch.dtype
    box: Box
    start: int
    payload: int
    payload_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The part of an image that stays the same while the state keeps its shape: `slots` up to `tensor_bytes`."""

    file: str
    slots: Mapping[str, Slot]
    tensor_bytes: int
    entries: Mapping[str, Stored]
    paths: Mapping[str, tuple[str | int, ...]]

    def frame(self, image: memoryview) -> None:
        """Write into `image` all that is not payload."""
        slots = list(self.slots.values())
        ends = [slot.start for slot in slots[1:]] + [self.tensor_bytes]
        for slot, end in zip(slots, ends, strict=bool(slots)):
            frame = archive.frame(slot.dtype, slot.box.sizes)
            behind = slot.payload + slot.payload_bytes
            image[slot.start : slot.payload] = frame.before
            image[behind:end] = frame.after.ljust(end - behind, b"\0")

    def place(self, objects: Mapping[str, bytes]) -> tuple[dict[str, Stored], int]:
        """What an image with these objects behind the tensors holds, and its size in bytes."""
        entries, end = dict(self.entries), self.tensor_bytes
        for name, packed in objects.items():
            entries[name] = StoredObject(file=self.file, start=end, length_bytes=len(packed))
            end += len(packed)
        return entries, end


def lay_out(
    file: str,
    shards: Mapping[str, Shard],
    paths: Mapping[str, tuple[str | int, ...]],
    share: Set[ChunkKey],
) -> Layout:
    """One archive after the other for those of `shards` that are in `share`."""
    slots: dict[str, Slot] = {}
    entries: dict[str, Stored] = {}
    start = 0
    for name, shard in shards.items():
        if (name, shard.box.offsets) not in share:
            continue
        dtype = shard.local.dtype
        frame = archive.frame(dtype, shard.box.sizes)
        payload = start + len(frame.before)
        slots[name] = Slot(dtype, shard.box, start, payload, frame.payload_bytes)
        chunk = StoredChunk(file, start, frame.length_bytes, payload, shard.box)
        entries[name] = StoredTensor(str(dtype).removeprefix("torch."), shard.shape, (chunk,))
        start += -(-frame.length_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return Layout(file, slots, start, entries, {name: paths[name] for name in slots})
