"""What two runs were started with, and the first steps at which what they recorded differs. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from holdfast.api.runhistory import StoredHistory
from holdfast.api.runmanifest import RunManifest, Section

LOSS_TOLERANCE: Final = 1e-3
COMMAND, CODE = "command", "code"


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing the two were started with, and not alike; None: the one does not have it."""

    section: str
    name: str
    a: str | None
    b: str | None


@dataclass(frozen=True, slots=True)
class Apart:
    """A step, and a number of each run after it."""

    step: int
    a: float
    b: float


@dataclass(frozen=True, slots=True)
class Prints:
    """The first step whose fingerprints differ: of these groups of parameters, of all that were compared. `equal`
    is the last step before it whose fingerprints are equal, None: none was compared.
    """

    step: int
    groups: tuple[str, ...]
    equal: int | None


@dataclass(frozen=True, slots=True)
class Parted:
    """Where the records part; None: nowhere in what both have. `losses` are the first and last step of which both
    know a loss, `fingerprints` likewise; None: there is no such step.
    """

    loss: Apart | None
    loss_bits: Apart | None
    norm_bits: Apart | None
    prints: Prints | None
    losses: tuple[int, int] | None
    fingerprints: tuple[int, int] | None

    @property
    def first_step(self) -> int | None:
        """The first step at which anything is known to differ; None: nothing is."""
        steps = [each.step for each in (self.loss_bits, self.norm_bits, self.prints) if each is not None]
        return min(steps, default=None)


def settings_apart(a: RunManifest, b: RunManifest) -> tuple[Setting, ...]:
    """Everything in the two manifests that differs, in the order of `Section`; the command and the code first."""
    found: list[Setting] = []
    for place, (ours, theirs) in enumerate(zip_longest(_words(a), _words(b))):
        if ours != theirs:
            found.append(Setting(COMMAND, f"argument {place}", ours, theirs))
    found += _apart(CODE, {"commit": a.code.commit}, {"commit": b.code.commit})
    if a.code.diff != b.code.diff:
        first, second = (f"{len(each.code.diff.splitlines())} lines" for each in (a, b))
        found.append(Setting(CODE, "diff", first, second))
    found += _apart(CODE, a.code.files, b.code.files)
    for section in Section:
        found += _apart(section.value, a.of(section), b.of(section))
    return tuple(found)


def _words(manifest: RunManifest) -> tuple[str, ...]:
    """The command without the program: where the interpreter lies says nothing."""
    return manifest.command[1:]


def _apart(section: str, a: Mapping[str, str], b: Mapping[str, str]) -> list[Setting]:
    names = [*a, *(name for name in b if name not in a)]
    return [Setting(section, name, a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)]


def parted(a: StoredHistory, b: StoredHistory, tolerance: float = LOSS_TOLERANCE) -> Parted:
    """The first steps at which the two histories differ, of those that both know."""
    ours, theirs = a.losses, b.losses
    prints_a, prints_b = a.fingerprints, b.fingerprints
    return Parted(
        loss=_first_apart(ours, theirs, tolerance),
        loss_bits=_first_apart(ours, theirs, None),
        norm_bits=_first_apart(a.norms, b.norms, None),
        prints=_first_prints(prints_a, prints_b),
        losses=_span(ours, theirs),
        fingerprints=_span(prints_a, prints_b),
    )


def _span(a: Mapping[int, object], b: Mapping[int, object]) -> tuple[int, int] | None:
    common = a.keys() & b.keys()
    return (min(common), max(common)) if common else None


def _first_apart(a: Mapping[int, float], b: Mapping[int, float], tolerance: float | None) -> Apart | None:
    """By more than `tolerance`; None: in any bit."""
    for step in sorted(a.keys() & b.keys()):
        ours, theirs = a[step], b[step]
        if ours.hex() == theirs.hex():
            continue
        if tolerance is None or math.isnan(ours) != math.isnan(theirs) or abs(ours - theirs) > tolerance:
            return Apart(step, ours, theirs)
    return None


def _first_prints(a: Mapping[int, Mapping[str, int]], b: Mapping[int, Mapping[str, int]]) -> Prints | None:
    equal = None
    for step in sorted(a.keys() & b.keys()):
        ours, theirs = a[step], b[step]
        groups = tuple(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name))
        if groups:
            return Prints(step, groups, equal)
        equal = step
    return None
