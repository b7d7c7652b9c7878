"""Which checkpoints may go once a new one is committed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.checkpoint.dating import committed_at
from holdfast.checkpoint.discovery import Found, Unreadable, discover, lineage
from holdfast.checkpoint.naming import committed_step
from holdfast.checkpoint.need import Need
from holdfast.checkpoint.storage import Files

TOLD_WITHIN_S = 30.0
"""By then the watchdog has decided on what replicas computed: nodes are sampled once a second, and it may be
between two leaders. While it is away for longer, what it last said is verified stays.
"""

Dates = Callable[[str], float | None]
"""When the checkpoint of that name was committed, in seconds on any clock; None where nobody can tell."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How much stays: the newest `keep`, and what a rewind may need, as a `Need` says it. `also` is what somebody
    else says of that.
    """

    keep: int
    compared_every: int = 0
    verified: int | None = None
    also: Need | None = None

    @property
    def need(self) -> Need:
        """What a rewind may need, without what somebody else says."""
        return Need(self.compared_every, self.verified)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (self.need,) if self.also is None else (self.need, self.also)


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
    needed = (each for need in retention.needs for each in _to_go_back_to(line, need, dates))
    kept_names = {each.name for each in (*kept, *needed)}
    doomed = [each.name for each in found if each.name not in kept_names]
    if len(kept) == retention.keep:
        oldest = kept[-1].manifest.step
        doomed += [each.name for each in unreadable if (committed_step(each.name) or 0) < oldest]
    return sorted(doomed)


def _to_go_back_to(line: Sequence[Found], need: Need, dates: Dates) -> list[Found]:
    verified = [each for each in line if need.verified is not None and each.manifest.step <= need.verified]
    return [*verified[:1], *_old_enough(line, need, dates)]


def _old_enough(line: Sequence[Found], need: Need, dates: Dates) -> list[Found]:
    """The newest that is old enough to be verified; newer ones may hold what is found wrong only later."""
    if not need.reaches_back:
        return []
    known_to = next((each.manifest.step for each in line if _is_settled(each, line[0], dates)), 0)
    oldest_doubt = known_to - need.reaches_back
    stones: dict[int, Found] = {}  # one for each interval between comparisons, so that one grows old enough
    for each in line:
        step = each.manifest.step
        if step <= oldest_doubt:
            return [*stones.values(), each]
        stones.setdefault(-(-step // need.compared_every), each)
    return [*stones.values()]


def _is_settled(one: Found, newest: Found, dates: Dates) -> bool:
    """Whether it was committed so long before the newest that all comparisons up to it have been decided on. Steps
    alone have to tell where the storage keeps no dates; where it merely cannot tell now, it is not settled.
    """
    then, now = dates(one.name), dates(newest.name)
    return now is None or (then is not None and now - then >= TOLD_WITHIN_S)
