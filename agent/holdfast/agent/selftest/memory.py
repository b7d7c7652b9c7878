"""Memory patterns: written over a share of what is free, all of it, and only then read back.

Walking ones and zeros find bits that stick or pull on their neighbours, the checkerboard finds leaking pairs, and
each word holding its own address finds lines that select the wrong word.
Source: https://www.memtest86.com/tech_individual-test-descr.html
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from msgspec.structs import replace

from holdfast.agent.selftest.device import Device, DeviceKind
from holdfast.agent.selftest.station import Bench
from holdfast.api.drill import Spoiler
from holdfast.api.selftest import CheckResult, TestLevel, Verdict

WORD_BYTES: Final = 8
_PIECE_WORDS: Final = 1 << 22
_MIB: Final = 1 << 20

Pattern = Callable[[int, int], torch.Tensor]
"""Words `first` .. `first + count - 1` of a pattern, as int64 on the device; `first` is where a piece begins."""


@dataclass(frozen=True, slots=True)
class Share:
    """How much is tested: a share of what is free, at most so many bytes, and so many places of a walking bit."""

    ratio: float
    bytes_max: int
    walks: int


SHARES: Final = {
    (DeviceKind.CPU, TestLevel.LIGHT): Share(0.05, 4 * _MIB, 4),
    (DeviceKind.CPU, TestLevel.FULL): Share(0.05, 64 * _MIB, 64),
    (DeviceKind.CUDA, TestLevel.LIGHT): Share(0.1, 8192 * _MIB, 8),
    (DeviceKind.CUDA, TestLevel.FULL): Share(0.8, 1 << 50, 64),
}


def check_memory(device: Device, share: Share, bench: Bench) -> CheckResult:
    """Test `share` of the device's free memory."""
    free_bytes = _free_bytes(device)
    words = min(int(free_bytes * share.ratio), share.bytes_max) // WORD_BYTES
    pieces = [
        torch.empty(min(_PIECE_WORDS, words - first), dtype=torch.int64, device=device.torch)
        for first in range(0, words, _PIECE_WORDS)
    ]
    tested = f"{words * WORD_BYTES // _MIB} MiB of {free_bytes // _MIB} MiB free"
    for name, pattern in _patterns(device, share.walks, min(_PIECE_WORDS, words)):
        if damage := _damage(pieces, pattern, bench.spoiler):
            return replace(bench.blank, verdict=Verdict.FAILED, says=f"{name}: {damage}; {tested}", like="")
        bench.pulse()
    return replace(bench.blank, verdict=Verdict.PASSED, says=f"{tested} held every pattern", like="")


def _patterns(device: Device, walks: int, words: int) -> Iterator[tuple[str, Pattern]]:
    """Patterns for pieces of at most `words` words."""
    one = [1 << bit for bit in range(63)] + [-1 << 63]  # as int64 has them
    for walk in range(walks):
        shift = walk * len(one) // walks
        ones = _repeated(device, words, one[shift:] + one[:shift])
        yield f"walking one {walk}", ones
        yield f"walking zero {walk}", _inverted(ones)
    checks = _repeated(device, words, [0x5555555555555555, ~0x5555555555555555])
    yield "checkerboard", checks
    yield "checkerboard inverted", _inverted(checks)
    places = torch.arange(words, dtype=torch.int64, device=device.torch)
    yield "address in address", lambda first, count: places[:count] + first
    yield "address in address inverted", lambda first, count: ~(places[:count] + first)


def _repeated(device: Device, words: int, period: list[int]) -> Pattern:
    """`period` over and over, from the beginning of every piece."""
    whole = torch.tensor(period, dtype=torch.int64).repeat(-(-words // len(period))).to(device.torch)
    return lambda first, count: whole[:count]


def _inverted(pattern: Pattern) -> Pattern:
    return lambda first, count: ~pattern(first, count)


def _damage(pieces: list[torch.Tensor], pattern: Pattern, spoiler: Spoiler) -> str:
    """What is wrong after the pattern was written everywhere; nothing when nothing is."""
    for place, piece in enumerate(pieces):
        piece.copy_(pattern(place * _PIECE_WORDS, len(piece)))
    if pieces and not spoiler.is_idle:
        for bit in spoiler.flipped_bits(64 * len(pieces[0])):
            pieces[0][bit // 64] ^= 1 << bit % 63  # a Python integer above 63 bits is no int64
    for place, piece in enumerate(pieces):
        first = place * _PIECE_WORDS
        wanted = pattern(first, len(piece))
        if not torch.equal(piece, wanted):
            wrong = (piece != wanted).nonzero().flatten()
            word = int(wrong[0])
            bits = (int(piece[word]) ^ int(wanted[word])) & (2**64 - 1)
            return f"{len(wrong)} words read back wrong, the first is {first + word} with bits {bits:#x}"
    return ""


def _free_bytes(device: Device) -> int:
    """Source for the CPU: MemAvailable, https://man7.org/linux/man-pages/man5/proc_meminfo.5.html"""
    if device.kind is DeviceKind.CUDA:
        return torch.cuda.mem_get_info(device.index)[0]
    with open("/proc/meminfo") as meminfo:
        line = next(line for line in meminfo if line.startswith("MemAvailable:"))
    return int(line.split()[1]) << 10
