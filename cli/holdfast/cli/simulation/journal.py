"""The journal of a run, as the brain took it: from a state directory, or from the watchdog of a job that lives."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.api.decoding import decode_msgpack
from holdfast.api.errors import Malformed, Unavailable
from holdfast.cli.site import open_site
from holdfast.cli.target import Target
from holdfast.watchdog import brain
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.step import turn
from holdfast.watchdog.journal.replay import Replayed, walk

if TYPE_CHECKING:
    from holdfast.cli.watchdogclient import WatchdogClient


def journal_of(target: Target) -> Iterator[Replayed]:
    """Every line that is kept. Raises Unavailable when nobody answers or it cannot be read, InvalidInput."""
    from holdfast.cli.localsite import LocalSource

    source = open_site(target).source()
    if isinstance(source, LocalSource):
        with source.store() as store:
            yield from walk(store, source.job, brain=brain)
    else:
        yield from _told(source.client())


def _told(client: "WatchdogClient") -> Iterator[Replayed]:
    """By the watchdog: the state that the journal begins behind, and its lines."""
    origin = client.origin()
    try:
        state = decode_msgpack(origin.state, JobState)
    except Malformed as error:
        raise Unavailable(
            f"the watchdog of {client.job} is of another version, which keeps other states: {error}"
        ) from None
    offset = origin.offset
    for line in client.journal(offset):
        if line.offset != offset + 1:
            raise Unavailable(f"the journal of {client.job} was compacted while it was read; try again")
        step = turn(brain, state, line.event, line.at)
        state, offset = step.state, line.offset
        yield Replayed(line, step.effects, step.reason, state)
