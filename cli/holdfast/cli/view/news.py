"""What those who follow a run see of it, and what is worth a line between two looks."""

from dataclasses import dataclass

from holdfast.api.incident import Incident, IncidentState
from holdfast.api.status import JobPhase, JobStatus, RankStatus
from holdfast.cli.view.incident import (
    culprit_text,
    healed_no_round,
    in_one_line,
    is_report,
    rung_text,
    runs_again,
)
from holdfast.cli.view.table import number, seconds

REASON_WIDTH = 160


@dataclass(frozen=True, slots=True)
class Picture:
    """One look. Incidents are oldest first. `missed`: at the end, scripted faults that were not injected."""

    status: JobStatus
    ranks: tuple[RankStatus, ...] = ()
    incidents: tuple[Incident, ...] = ()
    missed: tuple[str, ...] = ()


def news(before: Picture | None, after: Picture) -> list[str]:
    """Lines for what changed, oldest first; an unchanged picture has none."""
    status, lines = after.status, []
    if status.round is not None and (before is None or before.status.round != status.round):
        lines.append(
            f"round {status.round}: {status.world_size} ranks; {in_one_line(status.reason, REASON_WIDTH)}"
        )

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
            lines.append(_closed(incident))

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
