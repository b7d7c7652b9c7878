"""Faults for drills and tests: arithmetic that goes wrong on request.

    flip:probability=0.02:seed=7     in each run, with this probability, one bit of the result flips
    stuck                            the same bit of every result is flipped: only others can tell
    hang                             the check never returns

Each may be confined with device=NAME and check=NAME. A drill file, as the launcher finds it in its run directory,
also lets the CPU stand in for devices that are not there:

    {"devices": ["GPU-1", "GPU-2"], "inject": ["flip:probability=0.02:seed=7:device=GPU-2"]}
"""

import random
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import InvalidInput, Malformed, Problem, Unavailable

DRILL_FILE: Final = "selftest-faults.json"
_FIX: Final = "write flip, stuck or hang, then :probability=P, :seed=N, :device=NAME, :check=NAME as needed"


class Kind(StrEnum):
    """What goes wrong."""

    FLIP = "flip"
    STUCK = "stuck"
    HANG = "hang"


class Injection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault. Empty `device` and `check`: all of them."""

    kind: Kind
    probability: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    seed: int = 0
    device: str = ""
    check: str = ""

    def concerns(self, check: str, device: str) -> bool:
        return self.device in ("", device) and self.check in ("", check)


class Drill(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A drill file. `devices` are names the CPU stands in for; none: the real devices are tested."""

    devices: tuple[str, ...] = ()
    inject: tuple[str, ...] = ()


def parse_injection(text: str) -> Injection:
    """Raises InvalidInput."""
    kind, *fields = text.split(":")
    pairs = dict(field.partition("=")[::2] for field in fields)
    try:
        return msgspec.convert({"kind": kind, **pairs}, Injection, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(Problem("inject", text, f"{_FIX} ({error})")) from error


def read_drill(path: Path) -> Drill:
    """Raises InvalidInput when it is no drill, Unavailable when it cannot be read."""
    try:
        return decode_json(path.read_bytes(), Drill)
    except Malformed as error:
        raise InvalidInput(Problem("drill", str(path), f"it is no drill: {error}")) from error
    except OSError as error:
        raise Unavailable(f"the drill {path} cannot be read: {error.strerror}") from error


class Spoiler:
    """Spoils the runs of one check on one device, the same ones whenever it is made anew."""

    def __init__(self, injections: Sequence[Injection], check: str, device: str) -> None:
        self._injections = [each for each in injections if each.concerns(check, device)]
        self._random = [random.Random(f"{each.seed}/{device}/{check}") for each in self._injections]

    @property
    def is_idle(self) -> bool:
        return not self._injections

    @property
    def hangs(self) -> bool:
        return any(each.kind is Kind.HANG for each in self._injections)

    def flipped_bits(self, bits: int) -> list[int]:
        """The bits to flip in the next run's result of `bits` bits."""
        found = []
        for each, chance in zip(self._injections, self._random, strict=True):
            if each.kind is Kind.STUCK:
                found.append(bits // 2)
            elif each.kind is Kind.FLIP and chance.random() < each.probability:
                found.append(chance.randrange(bits))
        return found

    def spoil(self, content: bytearray) -> None:
        """Flip what is to be flipped in the next run's result."""
        if self._injections:
            for bit in self.flipped_bits(8 * len(content)):
                content[bit // 8] ^= 1 << bit % 8
