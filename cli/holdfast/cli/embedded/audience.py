"""Who watches a run: looked at a few times a second until it is over, and told line by line what is worth it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import click

from holdfast.api.errors import Unavailable
from holdfast.api.incident import Incident, IncidentState
from holdfast.api.status import JobPhase, JobStatus, RankStatus
from holdfast.cli.embedded.watchdog import WatchdogLink
from holdfast.cli.incidentview import culprit_text, healed_no_round, in_one_line, is_report, rung_text, runs_again
from holdfast.cli.output import number, plain, seconds

POLL_INTERVAL_S: Final = 0.2
PROGRESS_INTERVAL_S: Final = 5.0
OVER: Final = (JobPhase.SUCCEEDED, JobPhase.FAILED)
REASON_WIDTH: Final = 160


@dataclass(frozen=True, slots=True)
class Picture:
    """One look. Incidents are oldest first. `missed`: at the end, scripted faults that were not injected."""

    status: JobStatus
    ranks: tuple[RankStatus, ...] = ()
    incidents: tuple[Incident, ...] = ()
    missed: tuple[str, ...] = ()


class Audience(Protocol):
    """Who watches a run."""

    def say(self, text: str) -> None:
        """Something happened that the watchdog does not know of, in one sentence."""
        ...

    def look(self, picture: Picture) -> None:
        """A new picture of the run; called several times a second."""
        ...


async def follow(link: WatchdogLink, audience: Audience) -> Picture:
    """Show every picture to `audience` until the job is over; returns the last one."""
    picture: Picture | None = None
    while True:
        try:
            if (status := await link.status()) is not None:
                picture = Picture(status, await link.ranks(), await link.incidents())
        except Unavailable:
            pass  # the watchdog is away: the picture before stays
        if picture is not None:
            audience.look(picture)
            if picture.status.phase in OVER:
                return picture
        await asyncio.sleep(POLL_INTERVAL_S)


class LineAudience:
    """Writes what happens to stderr, one line each, with the seconds since the start."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started_at = clock()
        self._last: Picture | None = None
        self._progress_at = clock()
        self._progress_step: int | None = None

    def say(self, text: str) -> None:
        click.echo(plain(f"{self._clock() - self._started_at:7.1f}s  {text}"), err=True)

    def look(self, picture: Picture) -> None:
        for line in news(self._last, picture):
            self.say(line)
        self._last = picture
        now, step = self._clock(), picture.status.step
        is_time = now - self._progress_at >= PROGRESS_INTERVAL_S
        if is_time and picture.status.phase is JobPhase.RUNNING and step not in (None, self._progress_step):
            self._progress_at, self._progress_step = now, step
            self.say(progress(picture))


def news(before: Picture | None, after: Picture) -> list[str]:
    """Lines for what changed, oldest first; an unchanged picture has none. What opens an incident comes before the
    round that it leads to, whose first step closes it.
    """
    status, lines, closed = after.status, [], []
    # Incidents that were over before the first look are of an earlier run: named, and not told again.
    over = [] if before else [each for each in after.incidents if each.state is not IncidentState.OPEN]
    known = {incident.id: incident for incident in before.incidents} if before else {}
    if over:
        which = over[0].id if len(over) == 1 else f"{over[0].id} to {over[-1].id}"
        lines.append(f"incidents of an earlier run: {which}; `holdfast incidents` tells them")
    for incident in after.incidents:
        if incident in over:
            continue
        old = known.get(incident.id)
        if old is None:
            culprit = culprit_text(incident)
            lines.append(f"{incident.id}: {incident.kind} of {culprit}: {in_one_line(incident.cause)}")
        if incident.state is not IncidentState.OPEN and (old is None or old.state is IncidentState.OPEN):
            closed.append(_closed(incident))
    if status.round is not None and (before is None or before.status.round != status.round):
        lines.append(
            f"round {status.round}: {status.world_size} ranks; {in_one_line(status.reason, REASON_WIDTH)}"
        )
    lines += closed

    # Running and recovering are told by rounds and incidents already. A preflight may take minutes: that it waits
    # for others than before is news.
    was = before.status if before else None
    waits_anew = was is not None and status.phase is JobPhase.PREFLIGHT and was.reason != status.reason
    is_new = was is None or was.phase is not status.phase or waits_anew
    if is_new and status.phase not in (JobPhase.RUNNING, JobPhase.RECOVERING):
        lines.append(f"{status.phase}: {in_one_line(status.reason, REASON_WIDTH)}")
    return lines


def progress(picture: Picture) -> str:
    """Where training is, in one line."""
    status = picture.status
    return (
        f"step {number(status.step)}  loss {number(status.loss)}  {seconds(status.step_time_s)} a step  "
        f"{status.world_size} ranks"
    )


def _closed(incident: Incident) -> str:
    if incident.state is IncidentState.PAGED:
        return f"{incident.id}: a human is needed"
    if incident.state is IncidentState.OBSERVED:
        return f"{incident.id}: {in_one_line('; '.join(each.does for each in incident.actions), REASON_WIDTH)}"
    if is_report(incident):
        return f"{incident.id}: reported, nothing was changed"
    if healed_no_round(incident):
        return f"{incident.id}: over, no round had to be healed"
    if runs_again(incident):
        return f"{incident.id}: workers run again, {rung_text(incident)}; no new step was seen"
    lost = "unknown" if incident.lost_steps is None else str(incident.lost_steps)
    return (
        f"{incident.id}: recovered, {rung_text(incident)}; first new step after "
        f"{seconds(incident.time_to_recover_s)}, steps lost: {lost}"
    )
