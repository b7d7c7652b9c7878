"""All rounds of a job, each beside the one before: what changed, and what its figures did."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from holdfast.cli.figures import Figures
from holdfast.cli.rounds.changes import Change, changes
from holdfast.cli.rounds.chronicle import RoundTold
from holdfast.cli.rounds.effect import Effect, effects


class Compared(msgspec.Struct, frozen=True):
    """One round. `changes` and `effects` are from the round before; of the first one there are none."""

    round: RoundTold
    changes: tuple[Change, ...] = ()
    effects: tuple[Effect, ...] = ()


def compared(rounds: Sequence[RoundTold], figures: Figures) -> tuple[Compared, ...]:
    """Oldest first."""
    if not rounds:
        return ()
    first = Compared(rounds[0])
    return (first, *(Compared(b, changes(a, b), effects(a, b, figures)) for a, b in pairwise(rounds)))
