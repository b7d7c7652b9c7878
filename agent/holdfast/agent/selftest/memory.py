"""Memory patterns: written over a share of what is free, all of it, and only then read back.

Walking ones and zeros find bits that stick or pull on their neighbours, the checkerboard finds leaking pairs, and
each word holding its own address finds lines that select the wrong word.
Source: https://www.memtest86.com/tech_individual-test-descr.html
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
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


@dataclass(frozen=True, slots=True)
class Pattern:
    """What every piece holds: `content` from its beginning on, plus the piece's place where it is `addressed`."""

    name: str
    content: torch.Tensor  # int64, on the device
    addressed: bool = False
    inverted: bool = False

    def words(self, first: int, count: int) -> torch.Tensor:
        """Those of the piece that holds words `first` .. `first + count - 1` of all."""
        words = self.content[:count] + first if self.addressed else self.content[:count]
        return ~words if self.inverted else words


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
    if device.kind is DeviceKind.CUDA:
        free_bytes = torch.cuda.mem_get_info(device.index)[0]
    else:  # Source: MemAvailable, https://man7.org/linux/man-pages/man5/proc_meminfo.5.html
        available = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
        assert available is not None
        free_bytes = int(available[1]) << 10
    words = min(int(free_bytes * share.ratio), share.bytes_max) // WORD_BYTES
    pieces = [
        torch.empty(min(_PIECE_WORDS, words - first), dtype=torch.int64, device=device.torch)
        for first in range(0, words, _PIECE_WORDS)
    ]
    tested = f"{words * WORD_BYTES // _MIB} MiB of {free_bytes // _MIB} MiB free"
    for pattern in _patterns(device, share.walks, min(_PIECE_WORDS, words)):
        if damage := _damage(pieces, pattern, bench.spoiler):
            says = f"{pattern.name}: {damage}; {tested}"
            return replace(bench.blank, verdict=Verdict.FAILED, says=says, like="")
        bench.pulse()
    return replace(bench.blank, verdict=Verdict.PASSED, says=f"{tested} held every pattern", like="")


def _patterns(device: Device, walks: int, words: int) -> Iterator[Pattern]:
    """Patterns for pieces of at most `words` words."""

    def repeated(period: list[int]) -> torch.Tensor:
        return torch.tensor(period, dtype=torch.int64).repeat(-(-words // len(period))).to(device.torch)

    one = [1 << bit for bit in range(63)] + [-1 << 63]  # as int64 has them
    for walk in range(walks):
        shift = walk * len(one) // walks
        ones = repeated(one[shift:] + one[:shift])
        yield Pattern(f"walking one {walk}", ones)
        yield Pattern(f"walking zero {walk}", ones, inverted=True)
    checks = repeated([0x5555555555555555, ~0x5555555555555555])
    yield Pattern("checkerboard", checks)
    yield Pattern("checkerboard inverted", checks, inverted=True)
    places = torch.arange(words, dtype=torch.int64, device=device.torch)
    yield Pattern("address in address", places, addressed=True)
    yield Pattern("address in address inverted", places, addressed=True, inverted=True)


def _damage(pieces: list[torch.Tensor], pattern: Pattern, spoiler: Spoiler) -> str:
    """What is wrong after the pattern was written everywhere; nothing when nothing is."""
    for place, piece in enumerate(pieces):
        piece.copy_(pattern.words(place * _PIECE_WORDS, len(piece)))
    if pieces and not spoiler.is_idle:
        for bit in spoiler.flipped_bits(64 * len(pieces[0])):
            pieces[0][bit // 64] ^= 1 << bit % 63  # a Python integer above 63 bits is no int64
    for place, piece in enumerate(pieces):
        first = place * _PIECE_WORDS
        wanted = pattern.words(first, len(piece))
        if not torch.equal(piece, wanted):
            wrong = (piece != wanted).nonzero().flatten()
            word = int(wrong[0])
            bits = (int(piece[word]) ^ int(wanted[word])) & (2**64 - 1)
            return f"{len(wrong)} words read back wrong, the first is {first + word} with bits {bits:#x}"
    return ""
