"""Feeding a journal to the brain again, from the store of a run or from a watchdog that runs elsewhere."""

from collections.abc import Callable
from typing import Final

from holdfast.api.errors import Unavailable
from holdfast.cli.localsite import LocalSource
from holdfast.cli.watchdogclient import WatchdogClient
from holdfast.watchdog import brain
from holdfast.watchdog.brain.step import turn
from holdfast.watchdog.journal.replay import Replay, Replayed, Verdict, replay, walk
from holdfast.watchdog.store.sqlite import SqliteStore

Show = Callable[[Replayed], None]
LOOKS_MAX: Final = 5  # the job goes on meanwhile: how often to catch up with it before giving up


def replay_stored(source: LocalSource, show: Show) -> Replay:
    """Compared with the stored state. Raises Unavailable when there is no journal."""
    directory = source.directory
    if not directory.store_file.exists():
        raise Unavailable(f"there is no journal in {directory.root}")
    store = SqliteStore(directory.store_file)
    try:
        for step in walk(store, source.job, brain=brain):
            show(step)
        return replay(store, source.job, brain=brain)
    finally:
        store.close()


def replay_shown(client: WatchdogClient, show: Show) -> Replay:
    """Compared with the round and plan the watchdog shows, once nothing was journaled between reading both.

    Raises Unavailable when the journal grows faster than it can be read, or when its first lines are gone.
    """
    state, offset = brain.initial(client.job), 0
    for _ in range(LOOKS_MAX):
        for line in client.journal(offset):
            if line.offset != offset + 1:
                raise Unavailable(
                    f"the journal of {client.job} begins at line {line.offset}; what the lines before it led to"
                    " is only in the watchdog's store, so that it cannot be replayed from here"
                )
            step = turn(brain, state, line.event, line.at)
            state, offset = step.state, line.offset
            show(Replayed(line, step.effects, step.reason, state))
        kept = {"desired": client.desired(), "plan": client.plan()}
        if next(client.journal(offset), None) is None:
            differences = tuple(
                f"{name}: the journal gives {getattr(state, name)!r}, shown is {value!r}"
                for name, value in kept.items()
                if getattr(state, name) != value
            )
            verdict = Verdict.DIFFERENT if differences else Verdict.EQUAL
            return Replay(client.job, offset, state, verdict, offset, differences)
    raise Unavailable(f"the journal of {client.job} grows faster than it can be read; try again")
