"""Copying tensors into an image, as fast as memory takes it."""

import ctypes
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from holdfast.checkpoint.layout import Slot

_PIECE_BYTES = 16 << 20  # Small enough that two threads end together, large enough to be worth their taking turns.
_LARGE_BYTES = 1 << 20  # Below this a second thread costs more than it copies: Python's lock changes hands.

_Run = tuple[int, int, int]
"""Where to in the image, the address where from, how many bytes."""

_move = ctypes.memmove


@dataclass(frozen=True, slots=True)
class Moves:
    """Tensors on their way to their slots: those that lie in host memory in one piece as runs of bytes, and the
    others. Valid while the tensors stay where they are.
    """

    small: list[_Run]
    large: list[_Run]
    others: list[tuple[Slot, torch.Tensor]]


def plan(pairs: Iterable[tuple[Slot, torch.Tensor]]) -> Moves:
    """How each of the tensors gets to its slot's payload."""
    moves = Moves(small=[], large=[], others=[])
    for slot, tensor in pairs:
        if not _is_plain(tensor):
            moves.others.append((slot, tensor))
        elif slot.payload_bytes < _LARGE_BYTES:
            moves.small.append((slot.payload, tensor.data_ptr(), slot.payload_bytes))
        else:
            moves.large.extend(_cut(slot.payload, tensor.data_ptr(), slot.payload_bytes))
    return moves


class Copier:
    """Runs of bytes are moved by the C library, large ones by two threads; torch copies the others."""

    def __init__(self) -> None:
        self._helper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-copy")
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def copy(self, moves: Moves, image: torch.Tensor) -> None:
        """Into `image`, which is of bytes. Returns when all of it is there."""
        base = image.data_ptr()
        large = deque(moves.large)
        helping = self._helper.submit(_drain, large, base) if len(large) > 1 else None
        with torch.no_grad():
            self._copy_others([(_payload(image, slot), tensor) for slot, tensor in moves.others])
        for target, source, size in moves.small:
            _move(base + target, source, size)
        _drain(large, base)
        if helping is not None:
            helping.result()

    def _copy_others(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Those on a device by a stream of their own, after what was asked of the device before."""
        for target, source in pairs:
            if not source.is_cuda:
                target.copy_(source)
        for device in {source.device for _, source in pairs if source.is_cuda}:
            stream = self._stream(device)
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                for target, source in pairs:
                    if source.device == device:
                        target.copy_(source, non_blocking=True)
            stream.synchronize()

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory is its content."""
    return (
        type(tensor) is torch.Tensor
        and tensor.is_cpu
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _payload(image: torch.Tensor, slot: Slot) -> torch.Tensor:
    return image[slot.payload : slot.payload + slot.payload_bytes].view(slot.dtype).view(slot.box.sizes)


def _cut(target: int, source: int, size: int) -> list[_Run]:
    return [
        (target + offset, source + offset, min(_PIECE_BYTES, size - offset))
        for offset in range(0, size, _PIECE_BYTES)
    ]


def _drain(runs: "deque[_Run]", base: int) -> None:
    """Move what is left, until nothing is. Several threads may; each run is taken by one."""
    while True:
        try:
            target, source, size = runs.popleft()
        except IndexError:
            return
        _move(base + target, source, size)
