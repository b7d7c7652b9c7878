"""Which checkpoints may go once a new one is committed."""

from collections.abc import Sequence

from holdfast.checkpoint.discovery import Found, Unreadable, lineage
from holdfast.checkpoint.naming import committed_step


def surplus(found: Sequence[Found], unreadable: Sequence[Unreadable], *, keep: int) -> list[str]:
    """The names to delete so that the newest `keep` of the newest line of descent stay.

    What belongs to a history that was given up goes, since the newest commit is the proof that training went
    another way. Only readable ones count as kept; an unreadable one stays, as evidence, until `keep` readable
    ones are newer. Nothing is named while nothing is found.
    """
    line = lineage(found)
    if not line:
        return []
    kept = line[:keep]
    kept_names = {each.name for each in kept}
    doomed = [each.name for each in found if each.name not in kept_names]
    if len(kept) == keep:
        oldest = kept[-1].manifest.step
        doomed += [each.name for each in unreadable if (committed_step(each.name) or 0) < oldest]
    return sorted(doomed)
