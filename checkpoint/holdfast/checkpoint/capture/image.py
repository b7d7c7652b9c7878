"""A rank's share of the state as the bytes of its checkpoint file, copied into host memory.

An image is archives of tensor chunks, one after the other, then objects. The copy runs on the training thread and
is all that a save costs it. So what stays the same while the state keeps its shape is worked out once, and the
memory is touched once and reused: fresh pages cost several times the copy itself.
"""

import ctypes
import pickle
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from holdfast.checkpoint.capture.live import ChunkKey, Look
from holdfast.checkpoint.capture.shard import Shard
from holdfast.checkpoint.format import archive
from holdfast.checkpoint.format.index import Box, Stored, StoredChunk, StoredObject, StoredTensor

_ALIGNMENT_BYTES = 64  # That of torch's own archives: payloads stay aligned for every dtype.
_PLAIN = (type(None), bool, int, float, str, tuple, list)


class Room(Protocol):
    """Memory for an image: page-aligned, already touched. A `SharedBuffer` is some, `PrivateMemory` is other."""

    @property
    def image(self) -> memoryview: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One rank's share of the state after `step` steps. Valid until the `room` it lies in is given to another one.

    `image` is exactly what the file called `file` has to hold; `entries` and `paths` are as in `Listing`.
    `healthy` is whether the rank's last loss and gradient norm were finite, None when it could not tell. `alike`
    is as in `SnapshotRecord`.
    """

    step: int
    batches: int
    file: str
    image: memoryview
    entries: Mapping[str, Stored]
    paths: Mapping[str, tuple[str | int, ...]]
    healthy: bool | None = None
    room: Room | None = None
    alike: Mapping[str, str] = field(default_factory=dict)


class ImageWriter:
    """Makes snapshots of rank `rank`."""

    def __init__(self, rank: int) -> None:
        self._file = f"__{rank}_0.distcp"
        self._copier = _TensorCopier()
        self._packed: dict[str, tuple[bytes, bytes]] = {}
        self._laid_out: tuple[int, Mapping[ChunkKey, str], _Layout] | None = None
        self._moves: tuple[_Layout, Mapping[str, Shard], int, _Moves] | None = None  # Of what is held.
        self._framed: weakref.WeakKeyDictionary[Room, _Layout] = weakref.WeakKeyDictionary()

    def write(
        self,
        look: Look,
        share: Mapping[ChunkKey, str],
        room_for: Callable[[int, int], Room | None],
        *,
        step: int,
        batches: int,
    ) -> Snapshot | None:
        """Copy what `share` asks for of the state that `look` sees, to be stored under the names that it gives; on
        return the state may change. `room_for` is given the size of the image in bytes and how many entries it
        has; where it gives no room, nothing is done.

        Raises InvalidInput for what cannot be packed.
        """
        layout = self._layout(look, share)
        objects = {name: self._pack(name, value) for name, value in look.objects.items() if (name, ()) in share}
        entries, end = dict(layout.entries), layout.tensor_bytes
        for name, packed in objects.items():
            entries[share[name, ()]] = StoredObject(file=self._file, start=end, length_bytes=len(packed))
            end += len(packed)
        room = room_for(end, len(entries))
        if room is None:
            return None
        image = torch.frombuffer(room.image, dtype=torch.uint8)
        if self._framed.get(room) is not layout:
            if any(shard.local.is_cuda for shard in look.held.values()):
                _pin(room, image)
            layout.frame(room.image)
            self._framed[room] = layout
        start = layout.tensor_bytes
        for packed in objects.values():
            room.image[start : start + len(packed)] = packed
            start += len(packed)
        self._copier.copy(_moves_of(layout, look.given), image)
        known = self._moves
        if known is None or known[0] is not layout or known[1] is not look.held or known[2] != look.revision:
            known = self._moves = layout, look.held, look.revision, _moves_of(layout, look.held)
        self._copier.copy(known[3], image)
        return Snapshot(
            step=step,
            batches=batches,
            file=self._file,
            image=room.image[:end],
            room=room,
            entries=entries,
            paths={**layout.paths, **dict(_stored(name, share[name, ()], look) for name in objects)},
        )

    def _pack(self, name: str, value: object) -> bytes:
        """The archive of an object, packed anew only when it has changed: most of an optimizer's settings never
        do, and packing one costs as much as copying a megabyte.
        """
        if isinstance(value, archive.Packed):
            return value.archive
        if not isinstance(value, _PLAIN):
            return archive.pack_object(value)
        content = pickle.dumps(value)
        known = self._packed.get(name)
        if known is None or known[0] != content:
            known = content, archive.pack_object(value)
            self._packed[name] = known
        return known[1]

    def _layout(self, look: Look, share: Mapping[ChunkKey, str]) -> "_Layout":
        """One archive after the other for those of the shards that are in `share`, laid out anew only when the
        state has changed its shape.
        """
        known = self._laid_out
        if known is not None and known[0] == look.generation and known[1] is share:
            return known[2]
        slots: dict[str, _Slot] = {}
        entries: dict[str, Stored] = {}
        paths: dict[str, tuple[str | int, ...]] = {}
        start = 0
        for name, shard in look.shards.items():
            stored = share.get((name, shard.box.offsets))
            if stored is None:
                continue
            dtype = shard.local.dtype
            frame = archive.frame(dtype, shard.box.sizes)
            payload = start + len(frame.before)
            slots[name] = _Slot(dtype, shard.box, start, payload, frame.payload_bytes)
            shape, box = shard.shape, shard.box
            if stored != name:  # by itself
                shape, box = shard.box.sizes, Box((0,) * len(shard.box.sizes), shard.box.sizes)
            chunk = StoredChunk(self._file, start, frame.length_bytes, payload, box)
            entries[stored] = StoredTensor(str(dtype).removeprefix("torch."), shape, (chunk,))
            paths.update([_stored(name, stored, look)])
            start += -(-frame.length_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        layout = _Layout(slots, start, entries, paths)
        self._laid_out = look.generation, share, layout
        return layout


def _stored(name: str, stored: str, look: Look) -> tuple[str, tuple[str | int, ...]]:
    """The name that it is stored under, and how that is nested."""
    return stored, look.paths[name] if stored == name else (stored,)


@dataclass(frozen=True, slots=True)
class _Slot:
    """A tensor chunk's place in the image: an archive that begins at `start`, its payload at `payload`.

    The archive ends, padded, where the next one starts.
    """

    dtype: torch.dtype
    box: Box
    start: int
    payload: int
    payload_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """The part of an image that stays the same while the state keeps its shape: `slots` up to `tensor_bytes`."""

    slots: Mapping[str, _Slot]
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


def _pin(room: Room, memory: torch.Tensor) -> None:
    """Register `memory` with the driver for as long as `room` lives: a GPU writes to it directly, several times as
    fast as to memory that may move. One that the driver refuses is copied to slowly.
    """
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = memory.data_ptr()
    if int(runtime.cudaHostRegister(address, memory.nbytes, 0)) == 0:
        weakref.finalize(room, runtime.cudaHostUnregister, address)


# Copying tensors into an image, as fast as memory takes it.

_PIECE_BYTES = 16 << 20  # Small enough that two threads end together, large enough to be worth their taking turns.
_LARGE_BYTES = 1 << 20  # Below this a second thread costs more than it copies: Python's lock changes hands.

_Run = tuple[int, int, int]
"""Where to in the image, the address where from, how many bytes."""

_move = ctypes.memmove


@dataclass(frozen=True, slots=True)
class _Moves:
    """Tensors on their way to their slots: those that lie in host memory in one piece as runs of bytes, and the
    others. Valid while the tensors stay where they are.
    """

    small: list[_Run]
    large: list[_Run]
    others: list[tuple[_Slot, torch.Tensor]]


def _moves_of(layout: _Layout, shards: Mapping[str, Shard]) -> _Moves:
    """How those of `shards` that have a place in the layout get to their slots' payloads."""
    moves = _Moves(small=[], large=[], others=[])
    for name, shard in shards.items():
        slot, tensor = layout.slots.get(name), shard.local
        if slot is None:
            continue
        is_its_content = type(tensor) is torch.Tensor and tensor.is_cpu and tensor.is_contiguous()
        if not is_its_content or tensor.is_conj() or tensor.is_neg():
            moves.others.append((slot, tensor))
        elif slot.payload_bytes < _LARGE_BYTES:
            moves.small.append((slot.payload, tensor.data_ptr(), slot.payload_bytes))
        else:
            moves.large.extend(
                (slot.payload + offset, tensor.data_ptr() + offset, min(_PIECE_BYTES, slot.payload_bytes - offset))
                for offset in range(0, slot.payload_bytes, _PIECE_BYTES)
            )
    return moves


class _TensorCopier:
    """Runs of bytes are moved by the C library, large ones by two threads; torch copies the others."""

    def __init__(self) -> None:
        self._helper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-copy")
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def copy(self, moves: _Moves, image: torch.Tensor) -> None:
        """Into `image`, which is of bytes. Returns when all of it is there."""
        base = image.data_ptr()
        large = deque(moves.large)
        helping = self._helper.submit(_drain, large, base) if len(large) > 1 else None
        with torch.no_grad():
            self._copy_others(moves.others, image)
        for target, source, size in moves.small:
            _move(base + target, source, size)
        _drain(large, base)
        if helping is not None:
            helping.result()

    def _copy_others(self, others: Sequence[tuple[_Slot, torch.Tensor]], image: torch.Tensor) -> None:
        """Those on a device by a stream of their own, after what was asked of the device before."""
        pairs = []
        for slot, source in others:
            payload = image[slot.payload : slot.payload + slot.payload_bytes]
            target = payload.view(slot.dtype).view(slot.box.sizes)
            if source.is_cuda:
                pairs.append((target, source))
            else:
                target.copy_(source)
        for device in {source.device for _, source in pairs}:
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream = self._streams[device]
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                for target, source in pairs:
                    if source.device == device:
                        target.copy_(source, non_blocking=True)
            stream.synchronize()


def _drain(runs: "deque[_Run]", base: int) -> None:
    """Move what is left, until nothing is. Several threads may; each run is taken by one."""
    while True:
        try:
            target, source, size = runs.popleft()
        except IndexError:
            return
        _move(base + target, source, size)
