"""The journal of a run, as the brain took it: from a state directory, or from the watchdog of a job that lives."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.cli.site import open_site
from holdfast.cli.target import Target
from holdfast.watchdog import brain
from holdfast.watchdog.brain.step import turn
from holdfast.watchdog.journal.replay import Replayed, walk

if TYPE_CHECKING:
    from holdfast.cli.site import JobSource


def journal_of(target: Target) -> Iterator[Replayed]:
    """Every line there is. Raises Unavailable when nobody answers or its first lines are gone, InvalidInput."""
    from holdfast.cli.localsite import LocalSource

    source = open_site(target).source()
    if isinstance(source, LocalSource):
        with source.store() as store:
            yield from walk(store, source.job, brain=brain)
    else:
        yield from _told(source)


def _told(source: "JobSource") -> Iterator[Replayed]:
    state, offset = brain.initial(source.job), 0
    for line in source.journal(0):
        if line.offset != offset + 1:
            raise Unavailable(
                f"the journal of {source.job} begins at line {line.offset}: what the lines before it led to is"
                " only in the watchdog's store; simulate it where that is, with --journal"
            )
        step = turn(brain, state, line.event, line.at)
        state, offset = step.state, line.offset
        yield Replayed(line, step.effects, step.reason, state)
    if not offset:
        raise InvalidInput(Problem("job", source.job, "its journal is empty; choose another"))
