"""Numbers that a script logs by itself (`run.log`), on their way from its ranks to whoever publishes them.

Nothing is decided by them. They are bounded where they begin and once more where they arrive, so that a script
that logs much costs its own job some of its numbers, and nobody else anything.
"""

import re
from typing import Annotated, Final

import msgspec

from holdfast.api.bounds import Many, Rank, Whole

# Trackers keep series in folders: MLflow takes no name that is not a path in its shortest form.
# Source: https://github.com/mlflow/mlflow/blob/master/mlflow/utils/validation.py (path_not_unique)
NAME = re.compile(r"(?=.{1,64}$)[A-Za-z_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
NAME_IN_WORDS: Final = (
    "a letter, then at most 63 letters, digits, or any of _ . / -; behind each / a letter, a digit or _"
)
TAKEN: Final = ("step", "at", "_step", "_runtime", "_timestamp")
"""Names by which trackers say of which step and time a value is."""
NAMES_MAX: Final = 64
"""How many names one rank may log."""
VALUES_PER_S: Final = 2000
"""How many values a second a job may log, over all ranks that are shown."""
SENT_EVERY_S: Final = 1.0
RANKS_SHOWN_MAX: Final = 64

# One value takes 19 bytes at most, a name 66: such a message has less than 48 KiB; a launcher's frame takes 64.
Series = Annotated[tuple[tuple[Whole, float], ...], msgspec.Meta(max_length=VALUES_PER_S)]
SeriesName = Annotated[str, msgspec.Meta(pattern=rf"^{NAME.pattern}$", max_length=64)]


class ScalarsLogged(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Worker to launcher, and from there to the watchdog: what `rank` logged in `round` since it last said so.

    `series` are steps and values by name, in the order in which they were logged; a value may be NaN or infinite.
    `since` is the step that the round went on from, None where the script did not say. `left_out` values were more
    than may be sent.
    """

    round: Whole
    rank: Rank
    series: Annotated[dict[SeriesName, Series], Many]
    since: Whole | None = None
    left_out: Whole = 0
