"""A profile of some ranks over some steps: what is asked for, and what each of them answers."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from holdfast.api.bounds import Few, Line, Rank, Text, Whole

STEPS_MAX: Final = 100
"""A trace of one step of a large model has some ten thousand events."""
RANKS_MAX: Final = 8
STEPS: Final = 5
"""How many are recorded where nobody says it."""


class ProfileWanted(msgspec.Struct, frozen=True, tag=True):
    """Watchdog to launcher, and from there to the workers that run `ranks` of `round`: record the next steps.

    `number` names the request.
    """

    round: Whole
    number: Whole
    ranks: Annotated[tuple[Rank, ...], Few]
    steps: Annotated[int, Meta(ge=1, le=STEPS_MAX)]


class ProfileTold(msgspec.Struct, frozen=True, tag=True):
    """Worker to launcher, and from there to the watchdog: what came of `ProfileWanted` of that number.

    `path` is the trace on the rank's node, of `size` bytes, for https://ui.perfetto.dev; `summary` says which
    collectives there were, how long they took and how much of that was not hidden behind computing. `problem` is
    why there is none.
    """

    round: Whole
    number: Whole
    rank: Rank
    path: Line = ""
    size: Whole = 0
    summary: Annotated[tuple[Line, ...], Few] = ()
    problem: Text = ""


class ProfileStatus(msgspec.Struct, frozen=True):
    """A profile that was asked for: `told` so far, of `ranks`. `over` is why no more will come, "" else."""

    number: int
    round: int
    ranks: tuple[int, ...]
    steps: int
    told: tuple[ProfileTold, ...] = ()
    over: str = ""
