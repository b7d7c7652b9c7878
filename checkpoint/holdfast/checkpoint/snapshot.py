"""Staging: a rank's state copied into host memory, laid out as the bytes of its checkpoint file.

The copy runs on the training thread and is all that a save costs it. The memory is touched once and reused:
fresh pages cost several times the copy itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from holdfast.checkpoint import archive
from holdfast.checkpoint.claims import Claim
from holdfast.checkpoint.index import Box
from holdfast.checkpoint.shard import Shard, shard_of

_ALIGNMENT_BYTES = 64  # That of torch's own archives: payloads stay aligned for every dtype.


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor chunk's place in the image: an archive of `length_bytes` at `start`, its payload at `payload`."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    box: Box
    start: int
    length_bytes: int
    payload: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One rank's state after `step` steps. Valid until the next one is taken with the same `Stage`."""

    step: int
    batches: int
    slots: tuple[Slot, ...]
    image: memoryview
    objects: Mapping[str, bytes]
    paths: Mapping[str, tuple[str | int, ...]]

    def claims(self) -> list[Claim]:
        tensors = [Claim(slot.name, slot.box.offsets, slot.payload_bytes) for slot in self.slots]
        return tensors + [Claim(name, (), 0) for name in self.objects]


@dataclass(frozen=True, slots=True)
class FlatState:
    """State by flat name, and how the names are nested."""

    values: Mapping[str, object]
    paths: Mapping[str, tuple[str | int, ...]]


class Stage:
    """The memory snapshots are staged in. One snapshot at a time."""

    def __init__(self) -> None:
        self._signature: list[tuple[object, ...]] = []
        self._slots: tuple[Slot, ...] = ()
        self._image = torch.empty(0, dtype=torch.uint8)
        self._targets: list[torch.Tensor] = []

    def take(self, state: FlatState, *, step: int, batches: int) -> Snapshot:
        """Copy `state`; on return it may change. Raises InvalidInput for what cannot be stored."""
        shards: dict[str, Shard] = {}
        objects: dict[str, bytes] = {}
        for name, value in state.values.items():
            if not isinstance(value, torch.Tensor):
                objects[name] = archive.pack_object(value)
            elif (shard := shard_of(name, value)) is not None:
                shards[name] = shard
        self._fit(shards)
        torch._foreach_copy_(self._targets, [shard.local for shard in shards.values()])
        return Snapshot(
            step=step,
            batches=batches,
            slots=self._slots,
            image=self._image.numpy().data,
            objects=objects,
            paths=state.paths,
        )

    def _fit(self, shards: Mapping[str, Shard]) -> None:
        signature: list[tuple[object, ...]] = [
            (name, shard.local.dtype, shard.shape, shard.box) for name, shard in shards.items()
        ]
        if signature == self._signature:
            return
        self._slots, size = _lay_out(shards)
        self._image = torch.zeros(size, dtype=torch.uint8)
        self._targets = [_enframe(self._image, slot) for slot in self._slots]
        self._signature = signature


def _lay_out(shards: Mapping[str, Shard]) -> tuple[tuple[Slot, ...], int]:
    slots: list[Slot] = []
    start = 0
    for name, shard in shards.items():
        frame = archive.frame(shard.local.dtype, shard.box.sizes)
        slots.append(
            Slot(
                name=name,
                dtype=shard.local.dtype,
                shape=shard.shape,
                box=shard.box,
                start=start,
                length_bytes=frame.length_bytes,
                payload=start + len(frame.before),
                payload_bytes=frame.payload_bytes,
            )
        )
        start += padded_bytes(frame.length_bytes)
    return tuple(slots), start


def _enframe(image: torch.Tensor, slot: Slot) -> torch.Tensor:
    """Write the archive's frame into the image and return its payload as a tensor to copy into."""
    frame = archive.frame(slot.dtype, slot.box.sizes)
    end = slot.payload + slot.payload_bytes
    _put(image, slot.start, frame.before)
    _put(image, end, frame.after)
    return image[slot.payload : end].view(slot.dtype).view(slot.box.sizes)


def _put(image: torch.Tensor, start: int, content: bytes) -> None:
    image[start : start + len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)


def padded_bytes(length_bytes: int) -> int:
    """How much room an archive takes, in the image and in the file."""
    return -(-length_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def cut(snapshot: Snapshot, slots: Sequence[Slot]) -> list[memoryview]:
    """The image's bytes of `slots`, each padded to the alignment; neighbours come as one piece."""
    spans: list[list[int]] = []
    for slot in slots:
        end = slot.start + padded_bytes(slot.length_bytes)
        if spans and spans[-1][1] == slot.start:
            spans[-1][1] = end
        else:
            spans.append([slot.start, end])
    return [snapshot.image[start:end] for start, end in spans]
