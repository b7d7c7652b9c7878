"""The newest word of every rank of a round."""

from collections.abc import Sequence

import msgspec

from holdfast.api.telemetry import RankSample


class Newest(msgspec.Struct, frozen=True):
    """The newest sample of each rank heard of, and when each came (watchdog clock, seconds).

    `world_size` is how many ranks there are to hear of.
    """

    samples: Sequence[RankSample] = ()
    heard_at: Sequence[float] = ()
    world_size: int = 0
