"""Whether ranks hold the same, by digests of what they hold.

A digest is of the bytes: two contents that differ have the same one with a probability below 2**-60. What is in
host memory is hashed there; of what is on a device only sums leave it, and what is small.

Rows of words are summed under two sets of random factors. Two rows of 32-bit words that differ have the same sum
of 64 bits under one such set with a probability of 2**-32 at most.
Source: Lemire and Kaser, Strongly universal string hashing is fast, section 3.1, https://arxiv.org/abs/1202.4961
"""

import ctypes
import io
import pickle
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import torch
import xxhash

from holdfast.checkpoint.capture.groups import as_text
from holdfast.checkpoint.capture.live import ChunkKey, Look
from holdfast.checkpoint.format import archive

_PIECE_BYTES: Final = 16 << 20  # Hashed by one of two threads: as in the copying of an image.
_WAITING_BYTES: Final = 64 << 20  # Of large parts at the least, before they are hashed: bounds what is copied.
_LARGE_BYTES: Final = 1 << 20  # Of what is on a device: what is smaller is hashed on the host.
_COLUMNS: Final = 4096
_TABLE_WORDS: Final = 1 << 22  # Summed at once: bounds the memory that takes on the device to 64 MiB.
_SEED: Final = 0x486F6C64

Bytes = Any
"""What xxhash takes."""


class Contents:
    """Digests of what one rank holds. Belongs to the training thread."""

    def __init__(self) -> None:
        self._helper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-digest")

    def of_all(self, look: Look, keys: Sequence[ChunkKey]) -> str:
        """Of all together: the same on two ranks that hold the same under the same keys."""
        return self._digest(_given_up(self._parts(look, keys))).hex()

    def of_each(self, look: Look, keys: Sequence[ChunkKey]) -> list[bytes]:
        """Of one after the other."""
        return [self._digest(_given_up([parts])) for parts in self._parts(look, keys)]

    def _digest(self, parts: Iterable[Bytes]) -> bytes:
        """Pieces of large parts are hashed by two threads, small ones with each other. A part may be a copy: no
        more of them are held than are worth the threads' taking turns, and one.
        """
        large: deque[tuple[int, Bytes]] = deque()
        digests: dict[int, bytes] = {}
        small, pieces, waiting = xxhash.xxh3_128(), 0, 0
        for part in parts:
            view = memoryview(part).cast("B")
            small.update(view.nbytes.to_bytes(8, "little"))  # where one ends is part of the content
            if view.nbytes < _LARGE_BYTES:
                small.update(view)
                continue
            for start in range(0, view.nbytes, _PIECE_BYTES):
                large.append((pieces, view[start : start + _PIECE_BYTES]))
                pieces += 1
            waiting += view.nbytes
            del part, view
            if waiting >= _WAITING_BYTES:
                self._drain(large, digests)
                waiting = 0
        self._drain(large, digests)
        for number in sorted(digests):
            small.update(digests[number])
        return small.digest()

    def _drain(self, large: deque[tuple[int, Bytes]], digests: dict[int, bytes]) -> None:
        """The digests of all pieces that wait, by their numbers."""

        def work() -> None:
            while True:
                try:
                    number, piece = large.popleft()
                except IndexError:
                    return
                digests[number] = xxhash.xxh3_128_digest(piece)

        helping = self._helper.submit(work) if len(large) > 1 else None
        work()
        if helping is not None:
            helping.result()

    def _parts(self, look: Look, keys: Sequence[ChunkKey]) -> Iterator[list[Bytes]]:
        """What is hashed of each key, made when it is asked for; but for devices, which are asked once."""
        devices: dict[torch.device, dict[str, torch.Tensor]] = {}
        for name, _ in keys:
            shard = look.held.get(name) or look.given.get(name)
            if shard is not None and not _is_on_host(shard.local):
                devices.setdefault(shard.local.device, {})[name] = shard.local
        sums: dict[str, list[Bytes]] = {}
        for there in devices.values():
            sums.update(zip(there, sums_of(list(there.values())), strict=True))
        for name, _ in keys:
            shard = look.held.get(name) or look.given.get(name)
            if shard is None:
                yield [_packed(look.objects[name])]
            elif name in sums:
                yield sums[name]
            else:
                yield [_bytes_of(_plain(shard.local, shard.box.sizes))]


def _given_up(those: Iterable[list[Bytes]]) -> Iterator[Bytes]:
    """One after the other, which nobody holds any more but who takes it."""
    for parts in those:
        while parts:
            yield parts.pop(0)


def _is_on_host(tensor: torch.Tensor) -> bool:
    """Or is of a kind that only a copy shows the content of."""
    return tensor.is_cpu or type(tensor) is not torch.Tensor


def _packed(value: object) -> bytes:
    """The same of two equal values on two ranks, but for sets."""
    if isinstance(value, archive.Packed):
        return value.content
    if text := as_text(value):
        return text.encode()
    into = io.BytesIO()
    pickler = _Pickler(into)
    pickler.fast = True  # Else what is one object twice is another content than two equal ones.
    try:
        pickler.dump(value)
    except Exception:  # What contains itself cannot be had that way.
        return archive.pack_object(value)
    return into.getvalue()


class _Pickler(pickle.Pickler):
    """Of a tensor the content: torch's own way names its place in memory."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            content = bytes(_bytes_of(_plain(value.detach().cpu(), tuple(value.shape))))
            return _described, (str(value.dtype), tuple(value.shape), content)
        return NotImplemented


def _described(*of: object) -> tuple[object, ...]:
    """Never called: nothing of this is unpickled."""
    return of


def _plain(tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """The content in one piece of host memory: a copy where it is not."""
    if type(tensor) is torch.Tensor and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        return tensor
    with torch.no_grad():
        return torch.empty(tuple(sizes), dtype=tensor.dtype).copy_(tensor)


def _bytes_of(tensor: torch.Tensor) -> Bytes:
    """The content of a contiguous tensor on the CPU, not copied."""
    if not tensor.nbytes:
        return b""
    view: Any = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    view.holder = tensor  # It lives as long as what looks into it.
    return view


@torch.no_grad()
def sums_of(tensors: Sequence[torch.Tensor]) -> list[list[Bytes]]:
    """Of tensors on one device, what is hashed of each: sums of rows of words, and all that fills no row. One
    transfer for all of them.
    """
    queued = [list(_queued(tensor)) for tensor in tensors]
    whole = [part for parts in queued for part in parts]
    host = memoryview(_bytes_of(torch.cat(whole).cpu())).cast("B") if whole else memoryview(b"")
    found: list[list[Bytes]] = []
    done = 0
    for parts in queued:
        sizes = [part.numel() for part in parts]
        found.append([host[done : done + sum(sizes)]])
        done += sum(sizes)
    return found


def _queued(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    """On its device, as bytes."""
    plain = tensor.resolve_conj().resolve_neg().contiguous().view(-1)
    if plain.data_ptr() % 8:
        plain = plain.clone()
    octets = plain.view(torch.uint8)
    row_bytes = 4 * _COLUMNS
    whole = octets.numel() // row_bytes * row_bytes if octets.numel() >= _LARGE_BYTES else 0
    if whole:
        factors = _factors(str(octets.device))
        table = octets[:whole].view(torch.int32).view(-1, _COLUMNS)
        for rows in torch.split(table, _TABLE_WORDS // _COLUMNS):
            wide = rows.to(torch.int64)
            for each in factors:
                yield (wide * each).sum(1).view(torch.uint8)
    rest = octets[whole:]
    yield rest.clone() if whole and plain.data_ptr() != tensor.data_ptr() else rest  # so that no copy is held


_known_factors: dict[str, list[torch.Tensor]] = {}


def _factors(device: str) -> list[torch.Tensor]:
    """Random, and the same on every rank."""
    if device not in _known_factors:
        words = xxhash.xxh3_64
        made = [
            [words(bytes([which]) + at.to_bytes(4, "little"), seed=_SEED).intdigest() for at in range(_COLUMNS)]
            for which in range(2)
        ]
        signed = [[word - 2**64 if word >= 2**63 else word for word in row] for row in made]
        _known_factors[device] = [torch.tensor(row, dtype=torch.int64, device=device) for row in signed]
    return _known_factors[device]
