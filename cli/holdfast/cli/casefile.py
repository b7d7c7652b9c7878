"""Gathers what is known of a job for whoever writes about it: from its watchdog or store, ledger and console.

What cannot be read is left out and said, and is no reason to write nothing.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from holdfast.api.errors import HoldfastError, Unavailable
from holdfast.api.event import Journaled
from holdfast.cli.figures import Figures, read_figures
from holdfast.cli.output import remark
from holdfast.cli.postmortem.case import Case
from holdfast.cli.seen import RecordedIncidents
from holdfast.cli.watchdogsource import remark_end

if TYPE_CHECKING:
    from holdfast.cli.site import JobSource


def remark_unread(case: Case) -> None:
    """Say on stderr what could not be read."""
    for each in case.unread:
        remark(each)


def case_of(source: "JobSource") -> Case:
    """Everything there is. Raises Unavailable where not even the incidents can be read whole, InvalidInput."""
    status = source.status()
    remark_end(status)
    incidents = source.incidents()
    if isinstance(incidents, RecordedIncidents):
        raise Unavailable("the whole story is at the watchdog, which is away; `incidents` shows what is recorded")
    unread = []
    journal: tuple[Journaled, ...] = ()
    ledger, figures = None, Figures()
    try:
        journal = tuple(source.journal(0))
    except HoldfastError as error:
        unread.append(f"The journal: {error}.")
    try:
        ledger = source.ledger()
    except HoldfastError as error:
        unread.append(f"The ledger: {error}.")
    try:
        figures = read_figures(source.series())
    except HoldfastError as error:
        unread.append(f"Figures over time: {error}.")
    now = status.ended_at or status.now or datetime.now(UTC).timestamp()
    return Case(source.job, now, incidents, journal, ledger, figures, tuple(unread))
