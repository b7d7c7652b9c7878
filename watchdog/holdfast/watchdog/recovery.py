"""The round that is owed: what several faults at once add up to."""

from holdfast.api.round import Entry
from holdfast.watchdog.state import JobState, Recovery
from holdfast.watchdog.step import changed


def owe(state: JobState, recovery: Recovery) -> JobState:
    """The state with `recovery` owed. Two recoveries become one that satisfies both."""
    known = state.recovery
    if known is None:
        return changed(state, recovery=recovery)
    rungs = [rung for rung in (known.rung, recovery.rung) if rung is not None]
    both = Recovery(
        reason=recovery.reason if recovery.incidents or not known.incidents else known.reason,
        entry=Entry.RESPAWN if Entry.RESPAWN in (known.entry, recovery.entry) else Entry.REENTER,
        fresh_ranks=tuple(sorted({*known.fresh_ranks, *recovery.fresh_ranks})),
        not_before=max(known.not_before, recovery.not_before),
        rung=max(rungs, default=None),
        incidents=tuple(dict.fromkeys((*known.incidents, *recovery.incidents))),
    )
    return changed(state, recovery=both)
