"""A committed checkpoint, read verified: whole, or the boxes of its tensors that a rank asks for."""

import copy
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from msgspec.structs import replace

from holdfast.api.errors import Damaged
from holdfast.api.round import Tier
from holdfast.checkpoint.capture.randomness import source_rank
from holdfast.checkpoint.commit.discovery import read_index, read_manifest
from holdfast.checkpoint.errors import Unfit
from holdfast.checkpoint.format import archive, own
from holdfast.checkpoint.format.files import Files, Readable
from holdfast.checkpoint.format.index import Box, Index, Stored, StoredObject, StoredTensor
from holdfast.checkpoint.format.manifest import Manifest, hash_block
from holdfast.checkpoint.format.verifiedfile import BlockSource, NoSource, VerifiedFile
from holdfast.checkpoint.format.wrappers import unwrapped
from holdfast.checkpoint.restore.blocks import BlockMap
from holdfast.checkpoint.restore.strip import Strip, Target, strips_of


class StoredCheckpoint:
    """One checkpoint. Every method raises Damaged when what it reads is not what was written, and OSError when
    it cannot be read now.
    """

    def __init__(self, files: Readable, name: str, manifest: Manifest, index: Index) -> None:
        """`files` holds what the manifest lists below `name/`. Nothing is read yet."""
        self.name = name
        self.manifest = manifest
        self._files = {
            file: VerifiedFile(files, f"{name}/{file}", record) for file, record in manifest.files.items()
        }
        self.index = _unwrapped(index)
        self.map = BlockMap(manifest, self.index.entries)
        self._blocks: BlockSource = NoSource()
        self.apart: frozenset[str] = frozenset()
        """The names of what ranks held in different content, where it is seen as one of them sees it."""

    @classmethod
    def open(cls, files: Files, name: str) -> "StoredCheckpoint":
        """A checkpoint in storage: reads its manifest and index, no tensor yet."""
        manifest = read_manifest(files, name)
        return cls(files, name, manifest, read_index(files, name, manifest))

    def healed_by(self, blocks: BlockSource) -> "StoredCheckpoint":
        """The same, where objects that are read at once have damaged blocks from there."""
        healed = copy.copy(self)
        healed._blocks = blocks
        return healed

    def seen_by(self, rank: int, world_size: int) -> "StoredCheckpoint":
        """The same as `rank` of that world restores it: what the rank that it follows kept for itself stands under
        its name. Of sharded tensors that is so in a world of the saved size only: in another one the parts of
        different ranks do not belong together.
        """
        source = source_rank(rank, self.manifest.world_size)
        entries = {name: each for name, each in self.index.entries.items() if not name.startswith(own.PREFIX)}
        if len(entries) == len(self.index.entries):
            return self
        apart: set[str] = set()
        for name, stored in self.index.entries.items():
            kept = own.read_own(name)
            if kept is None or kept.name not in entries:
                continue
            apart.add(kept.name)
            if kept.rank == source:
                is_same_world = world_size == self.manifest.world_size
                entries[kept.name] = _in_place(
                    entries[kept.name], stored, kept.offsets, is_same_world=is_same_world
                )
        seen = copy.copy(self)
        seen.index, seen.apart = Index(entries, self.index.paths), frozenset(apart)
        return seen

    def names(self, prefix: str = "") -> list[str]:
        return [name for name in self.index.entries if name.startswith(prefix)]

    def has_tensor(self, name: str) -> bool:
        return isinstance(self.index.entries.get(name), StoredTensor)

    def has_object(self, name: str) -> bool:
        return isinstance(self.index.entries.get(name), StoredObject)

    def digest(self) -> str:
        """The same on two ranks if they see the same checkpoint."""
        return hash_block(msgspec.msgpack.encode((self.name, self.manifest)))

    def read_object(self, name: str) -> object:
        """Raises Unfit when there is no such object, or it needs code to be loaded."""
        ((file, strip),) = self.object_strips(name)
        return self.unpack(name, self._file(file).read(strip.start, strip.row_bytes, self._blocks))

    def read_tensor(self, name: str, box: Box | None = None) -> torch.Tensor:
        """`box` of the tensor (None: all of it), in fresh CPU memory. Raises Unfit when there is none."""
        dtype, shape = self.shape_of(name)
        wanted = box or Box(offsets=(0,) * len(shape), sizes=shape)
        result = torch.empty(wanted.sizes, dtype=dtype)
        target = Target(result)
        for file, strip in self.tensor_strips(name, wanted):
            content = self._file(file).read(strip.start, strip.end - strip.start)
            target.put(strip, np.frombuffer(content, dtype=np.uint8), strip.start)
        return result

    def tensor_strips(self, name: str, box: Box) -> list[tuple[str, Strip]]:
        """Where `box` of the tensor lies, each strip with its file. Raises Unfit when there is no such tensor."""
        stored = self._tensor(name)
        itemsize = _dtype(stored.dtype).itemsize
        # In the layout that was saved, one chunk is all of it, and the others need not be looked at.
        whole = [chunk for chunk in stored.chunks if chunk.box == box][:1]
        found = [
            self._within(chunk.file, strip)
            for chunk in whole or stored.chunks
            for strip in strips_of(chunk.box, box, payload=chunk.payload, itemsize=itemsize)
        ]
        if sum(strip.size_bytes for _, strip in found) != box.volume * itemsize:
            raise Damaged(f"{self.name} holds only a part of {name}")
        return found

    def object_strips(self, name: str) -> list[tuple[str, Strip]]:
        """Where a packed object lies. Raises Unfit when there is no such object."""
        stored = self.index.entries.get(name)
        if stored is None or isinstance(stored, StoredTensor):
            raise Unfit(f"{self.name} holds no object {name}")
        return [self._within(stored.file, Strip(start=stored.start, row_bytes=stored.length_bytes, at=0))]

    def unpack(
        self, name: str, packed: bytes | bytearray, by: Callable[[bytes], object] = archive.unpack_object
    ) -> object:
        """The object. Raises Unfit when it needs code to be loaded, Damaged when it is none."""
        try:
            return by(bytes(packed))
        except pickle.UnpicklingError as error:
            raise Unfit(f"{name} in {self.name} is not made of plain values and tensors: {error}") from error
        except Exception as error:  # Bytes that are no archive can make its reader do anything but run them.
            raise Damaged(f"{name} in {self.name} cannot be unpacked: {type(error).__name__}: {error}") from error

    def shape_of(self, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """A tensor's dtype and whole shape. Raises Unfit when there is no such tensor."""
        stored = self._tensor(name)
        return _dtype(stored.dtype), stored.shape

    def locate(self, block: int) -> tuple[VerifiedFile, int]:
        """The file of a block of `map`, and which of the file's blocks it is."""
        file, number = self.map.locate(block)
        return self._files[file], number

    def _file(self, name: str) -> VerifiedFile:
        if name not in self._files:
            raise Damaged(f"the manifest of {self.name} does not list {name}")
        return self._files[name]

    def _tensor(self, name: str) -> StoredTensor:
        stored = self.index.entries.get(name)
        if not isinstance(stored, StoredTensor):
            raise Unfit(f"{self.name} holds no tensor {name}")
        return stored

    def _within(self, file: str, strip: Strip) -> tuple[str, Strip]:
        """The two, if the file has such bytes."""
        size = self._file(file).record.size_bytes
        if strip.start < 0 or strip.end > size:
            raise Damaged(f"{self.name}/{file} ends at {size}, bytes up to {strip.end} are asked for")
        return file, strip


def _in_place(common: Stored, kept: Stored, offsets: Sequence[int], *, is_same_world: bool) -> Stored:
    """What a rank kept for itself, in place of what is stored under the name."""
    if not isinstance(common, StoredTensor) or not isinstance(kept, StoredTensor):
        return kept
    if kept.shape == common.shape or len(common.chunks) == 1:
        return kept
    box = Box(tuple(offsets) or (0,) * len(kept.shape), kept.shape)
    if not is_same_world or all(chunk.box != box for chunk in common.chunks):
        return common
    (own_chunk,) = kept.chunks
    chunks = tuple(replace(own_chunk, box=box) if chunk.box == box else chunk for chunk in common.chunks)
    return StoredTensor(common.dtype, common.shape, chunks)


def _unwrapped(index: Index) -> Index:
    """Older checkpoints have the names of some wrappers in theirs. Those of further objects are their own."""
    names = {name: name if name.startswith("extra.") else unwrapped(name) for name in index.entries}
    if all(name == known for name, known in names.items()):
        return index
    paths = {
        names[name]: path
        if names[name] == name
        else tuple(unwrapped(step) if isinstance(step, str) else step for step in path)
        for name, path in index.paths.items()
    }
    return Index({names[name]: each for name, each in index.entries.items()}, paths)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise Unfit(f"this torch has no dtype {name}")
    return dtype


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a round may restore: a checkpoint in storage, or the snapshots of one step in the ranks' memory.

    Opened on every rank, when its turn comes. `open` raises Damaged when what it finds is not what was written,
    and OSError when it cannot tell now.
    """

    name: str
    open: Callable[[], StoredCheckpoint]
    tier: Tier = Tier.CHECKPOINT
