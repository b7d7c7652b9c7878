"""Checkpoints as every part speaks of them: how each stands, and which one a restore takes.

A checkpoint is *committed* (durable, its blocks intact), *healthy* (loss, gradient norm and trained parameters
finite on all ranks) and *verified* (its replicas were proved equal, or its devices sound). The library that stores
them and the watchdog that sends rounds back go by the same two rules, `health_of` and `restore_order`.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Protocol, TypeVar

import msgspec

from holdfast.api.bounds import Name, Whole

TOLD_MAX = 64
"""How many checkpoints of a storage the watchdog is told by name. A job keeps a handful; a list of this length is
some 4 KB in each message, journal line and snapshot of the state, whatever lies in the storage.
"""


class Standing(msgspec.Struct, frozen=True):
    """What the watchdog says of the history that goes on.

    `verified` is the last step after which all replicas held the same, or all devices were sound, None: not known
    of any. `unhealthy_from` is the first step after which some rank's loss or gradient norm was not finite, None:
    none is known.
    """

    verified: int | None = None
    unhealthy_from: int | None = None


class Health(StrEnum):
    """Whether what a checkpoint holds was computed with finite losses and gradients."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


class Checkpointed(Protocol):
    """A checkpoint of any kind. `healthy` is whether every rank that could tell was finite when it was saved, None
    when nobody could.
    """

    @property
    def step(self) -> int: ...

    @property
    def healthy(self) -> bool | None: ...


class StoredCheckpoint(msgspec.Struct, frozen=True):
    """A readable checkpoint in storage, of the history that goes on.

    `round` counts as this life of the job does; what an earlier life saved comes out below 1. `name` is its
    folder.
    """

    step: Whole
    round: Whole
    name: Name
    healthy: bool | None = None


C = TypeVar("C", bound=Checkpointed)


def all_finite(told: Iterable[bool | None]) -> bool | None:
    """Whether everybody who could tell was finite, of ranks as of what a rank looks at; None: nobody could."""
    said = {each for each in told if each is not None}
    return all(said) if said else None


def health_of(checkpoint: Checkpointed, unhealthy_from: int | None) -> Health:
    """How it stands, given the first step that is known to be unhealthy."""
    if is_refused(checkpoint.step, unhealthy_from) or checkpoint.healthy is False:
        return Health.UNHEALTHY
    return Health.HEALTHY if checkpoint.healthy else Health.UNKNOWN


def is_refused(step: int, unhealthy_from: int | None) -> bool:
    """Whether the state after `step` is not to be restored, whatever else there is."""
    return unhealthy_from is not None and step >= unhealthy_from


def restore_order(line: Sequence[C], unhealthy_from: int | None) -> list[C]:
    """Which of `line`, newest first, a restore tries, in that order.

    None from the first unhealthy step on. One that was not finite when it was saved is tried when none of the
    others is left: the watchdog may know better (the step was skipped), and half a state is worse.
    """
    allowed = [each for each in line if not is_refused(each.step, unhealthy_from)]
    return sorted(allowed, key=lambda each: each.healthy is False)  # Stable: newest first among equals.


def told_of(line: Sequence[C], most: int = TOLD_MAX) -> list[C]:
    """What is told of a line, newest first: all of it, or its newest part and the oldest of all."""
    return list(line) if len(line) <= most else [*line[: most - 1], line[-1]]
