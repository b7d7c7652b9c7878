"""Which checkpoints may go once a new one is committed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.checkpoint.dating import committed_at
from holdfast.checkpoint.discovery import Found, Unreadable, discover, lineage
from holdfast.checkpoint.naming import committed_step
from holdfast.checkpoint.storage import Files

# What is compared after a step is told with the next sample of a node, which may leave some out.
COMPARISONS_BACK = 2
TOLD_WITHIN_S = 30.0
"""By then the watchdog has decided on what replicas computed: nodes are sampled once a second, and it may be
between two leaders. While it is away for longer, what it last said is verified stays.
"""

Dates = Callable[[str], float | None]
"""When the checkpoint of that name was committed, in seconds on any clock; None where nobody can tell."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How much stays: the newest `keep`, and what a rewind may need.

    `compared_every` is after how many steps replicas are compared, 0: never. `verified` is the last step after
    which they are known to have held the same, None: not known of any.
    """

    keep: int
    compared_every: int = 0
    verified: int | None = None

    @property
    def reaches_back(self) -> int:
        """How many steps before a settled one a checkpoint must be that surely is verified; 0: none is needed."""
        return COMPARISONS_BACK * self.compared_every


def superfluous(files: Files, retention: Retention) -> list[str]:
    """What `surplus` says of the storage as it is. Raises OSError when the storage fails."""
    return surplus(*discover(files), retention, lambda name: committed_at(files, name))


def surplus(
    found: Sequence[Found], unreadable: Sequence[Unreadable], retention: Retention, dates: Dates
) -> list[str]:
    """The names to delete so that what `retention` says of the newest line of descent stays.

    What belongs to a history that was given up goes, since the newest commit is the proof that training went
    another way. Only readable ones count as kept; an unreadable one stays, as evidence, until `keep` readable
    ones are newer. Nothing is named while nothing is found.
    """
    line = lineage(found)
    if not line:
        return []
    kept = line[: retention.keep]
    verified = [
        each for each in line if retention.verified is not None and each.manifest.step <= retention.verified
    ]
    kept_names = {each.name for each in (*kept, *verified[:1], *_to_go_back_to(line, retention, dates))}
    doomed = [each.name for each in found if each.name not in kept_names]
    if len(kept) == retention.keep:
        oldest = kept[-1].manifest.step
        doomed += [each.name for each in unreadable if (committed_step(each.name) or 0) < oldest]
    return sorted(doomed)


def _to_go_back_to(line: Sequence[Found], retention: Retention, dates: Dates) -> list[Found]:
    """The newest that is old enough to be verified; newer ones may hold what is found wrong only later."""
    if not retention.reaches_back:
        return []
    known_to = next((each.manifest.step for each in line if _is_settled(each, line[0], dates)), 0)
    oldest_doubt = known_to - retention.reaches_back
    stones: dict[int, Found] = {}  # one for each interval between comparisons, so that one grows old enough
    for each in line:
        step = each.manifest.step
        if step <= oldest_doubt:
            return [*stones.values(), each]
        stones.setdefault(-(-step // retention.compared_every), each)
    return [*stones.values()]


def _is_settled(one: Found, newest: Found, dates: Dates) -> bool:
    """Whether it was committed so long before the newest that all comparisons up to it have been decided on. Steps
    alone have to tell where the storage keeps no dates; where it merely cannot tell now, it is not settled.
    """
    then, now = dates(one.name), dates(newest.name)
    return now is None or (then is not None and now - then >= TOLD_WITHIN_S)
