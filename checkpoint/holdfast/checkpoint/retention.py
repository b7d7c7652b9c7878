"""Which checkpoints may go once a new one is committed."""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.checkpoint.discovery import Found, Unreadable, lineage
from holdfast.checkpoint.naming import committed_step

# Replicas are compared every so many steps. What the last comparison but one found equal has been verified by the
# time the next one finds them different, however late it is told.
COMPARISONS_BACK = 2


@dataclass(frozen=True, slots=True)
class Retention:
    """How much stays: the newest `keep`, and what a rewind may need.

    `compared_every` is after how many steps replicas are compared, 0: never.
    """

    keep: int
    compared_every: int = 0

    @property
    def reaches_back(self) -> int:
        """How many steps before the newest checkpoint one must be that surely is verified; 0: none is needed."""
        return COMPARISONS_BACK * self.compared_every


def surplus(found: Sequence[Found], unreadable: Sequence[Unreadable], retention: Retention) -> list[str]:
    """The names to delete so that what `retention` says of the newest line of descent stays.

    What belongs to a history that was given up goes, since the newest commit is the proof that training went
    another way. Only readable ones count as kept; an unreadable one stays, as evidence, until `keep` readable
    ones are newer. Nothing is named while nothing is found.
    """
    line = lineage(found)
    if not line:
        return []
    kept = line[: retention.keep]
    kept_names = {each.name for each in (*kept, *_to_go_back_to(line, retention))}
    doomed = [each.name for each in found if each.name not in kept_names]
    if len(kept) == retention.keep:
        oldest = kept[-1].manifest.step
        doomed += [each.name for each in unreadable if (committed_step(each.name) or 0) < oldest]
    return sorted(doomed)


def _to_go_back_to(line: Sequence[Found], retention: Retention) -> list[Found]:
    """The newest that is old enough to be verified; newer ones may hold what is found wrong only later."""
    if not retention.reaches_back:
        return []
    oldest_doubt = line[0].manifest.step - retention.reaches_back
    stones: dict[int, Found] = {}  # one for each interval between comparisons, so that one grows old enough
    for each in line:
        step = each.manifest.step
        if step <= oldest_doubt:
            return [*stones.values(), each]
        stones.setdefault(-(-step // retention.compared_every), each)
    return [*stones.values()]
