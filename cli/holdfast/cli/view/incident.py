"""Incidents as text: a line each, or the whole story of one."""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import Incident, IncidentState, Rung
from holdfast.cli.output import UNKNOWN, number, seconds, table

RUNG_WORDS = {
    Rung.SKIP_STEP: "skipped the step",
    Rung.REENTER: "re-entered",
    Rung.RESPAWN: "respawned",
    Rung.SWAP: "swapped in a spare",
    Rung.SHRINK: "shrank",
    Rung.REWIND: "rewound",
    Rung.PAGE: "paged a human",
}
# No node is to blame for these.
_NOBODY = (FindingKind.USER_CODE, FindingKind.NOTHING_TO_RESTORE)
CAUSE_WIDTH = 34
GPU_WIDTH = 12
_HEADERS = ("INCIDENT", "KIND", "CULPRIT", "CAUSE", "RUNG", "DETECTED", "NEW STEP", "STEPS LOST", "STATE")
_RECORDED_HEADERS = ("INCIDENT", "KIND", "CULPRIT", "CAUSE", "ACTION", "NEW STEP", "STATE")


def culprit_text(incident: Incident) -> str:
    """Who it was, with a question mark where nobody knows. A GPU's UUID is cut to what tells it apart in a job."""
    if incident.kind is FindingKind.NOTHING_TO_RESTORE:
        return "the checkpoints"
    if incident.kind is FindingKind.USER_CODE:
        return f"the script, {incident.culprit}"
    if incident.innocent:
        return incident.blamed
    gpu = incident.culprit.gpu[:GPU_WIDTH] if incident.culprit.gpu else None
    return _doubted(incident, msgspec.structs.replace(incident.culprit, gpu=gpu))


def _doubted(incident: Incident, who: Subject) -> str:
    """`node a?` where a node is named for being concerned and not for being at fault."""
    named = who.node is not None and incident.confidence is Confidence.UNKNOWN
    return f"{who}?" if named else str(who)


def is_report(incident: Incident) -> bool:
    """Whether it was only to be known: nothing was done, and training went on."""
    return healed_no_round(incident) and not incident.actions


def in_one_line(text: str, width: int = CAUSE_WIDTH) -> str:
    """The text without line breaks, cut where it gets too wide for a table."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else f"{flat[: width - 1]}…"


def healed_no_round(incident: Incident) -> bool:
    """Whether it was over without a new round: a node without ranks left, or the job ended."""
    return incident.state is IncidentState.RECOVERED and incident.recovered_round is None


def runs_again(incident: Incident) -> bool:
    """Whether it was healed without a step to prove it: the script publishes none, or the job ended first."""
    return incident.state is IncidentState.RECOVERED and incident.recovered_at is None


def rung_text(incident: Incident) -> str:
    """The highest rung climbed, in words; of a job that is only observed the one that would be."""
    if incident.state is IncidentState.OBSERVED and incident.rung is not None:
        return f"would: {incident.rung.value} {incident.rung.name.lower().replace('_', ' ')}"
    return "none" if incident.rung is None else f"{incident.rung.value} {RUNG_WORDS[incident.rung]}"


def incidents_text(incidents: Sequence[Incident]) -> str:
    """One line per incident, oldest first."""
    return (
        table(_HEADERS, [_row(each, in_one_line(each.cause)) for each in incidents])
        if incidents
        else "no incident"
    )


def incidents_wide_text(incidents: Sequence[Incident]) -> str:
    """The same with every word of the cause, and in which round it broke."""
    rows = [
        (*_row(each, " ".join(each.cause.split())), f"{number(each.round)} to {number(each.recovered_round)}")
        for each in incidents
    ]
    return table((*_HEADERS, "ROUND"), rows) if incidents else "no incident"


def _row(incident: Incident, cause: str) -> tuple[str, ...]:
    return (
        incident.id,
        incident.kind.value,
        culprit_text(incident),
        cause,
        rung_text(incident),
        seconds(incident.time_to_detect_s),
        seconds(incident.time_to_recover_s),
        number(incident.lost_steps),
        incident.state.value,
    )


def recorded_incidents_text(incidents: Sequence[Mapping[str, object]]) -> str:
    """Those a TrainingJob's status keeps, which may be of another version: read loosely. Oldest first."""
    rows = []
    for incident in incidents:
        told = {name: UNKNOWN if value in (None, "") else str(value) for name, value in incident.items()}
        named = (told.get(name, UNKNOWN) for name in ("id", "kind", "culprit"))
        long = (in_one_line(told.get(name, UNKNOWN)) for name in ("cause", "action"))
        recovered = incident.get("timeToRecoverSeconds")
        recovered_s = float(recovered) if isinstance(recovered, int | float) else None
        rows.append((*named, *long, seconds(recovered_s), told.get("state", UNKNOWN)))
    return table(_RECORDED_HEADERS, rows) if incidents else "no incident"


def story(incident: Incident) -> str:
    """Everything known of one incident, for somebody who was not there."""
    state = "was reported" if is_report(incident) else f"is {incident.state.value.lower()}"
    is_named_whole = not incident.innocent and incident.kind not in _NOBODY
    whose = _doubted(incident, incident.culprit) if is_named_whole else culprit_text(incident)
    sections = {
        "evidence": [(each.at, f"{each.source}: {each.says}") for each in incident.evidence],
        "actions": [
            (each.at, f"rung {each.rung.value}: {each.does}, because {each.reason}") for each in incident.actions
        ],
        "timeline": [(each.at, each.what) for each in incident.timeline],
    }
    # Seconds since the fault began; evidence may be older.
    told = {
        title: [f"{at - incident.began_at:+8.3f} s  {says}" for at, says in moments]
        for title, moments in sections.items()
    }
    told |= {"error": incident.error.splitlines(), "note": incident.note.splitlines()}
    parts = [
        f"{incident.id}: {incident.kind} of {whose} in {incident.job}",
        f"It {state}. {_cost(incident)}",
        f"cause       {incident.cause}\nconfidence  {_confidence(incident)}",
        *("\n".join([title, *(f"  {line}" for line in lines)]) for title, lines in told.items() if lines),
    ]
    return "\n\n".join(parts)


def _confidence(incident: Incident) -> str:
    if incident.kind is FindingKind.USER_CODE:
        return f"{incident.confidence} that the script raised it; no node is to blame"
    if incident.kind is FindingKind.NOTHING_TO_RESTORE:
        return f"{incident.confidence} that none can be restored; no node is to blame"
    if incident.innocent:
        return f"{incident.confidence} that the pod was ended; node {incident.culprit.node} is not to blame"
    if incident.confidence is not Confidence.UNKNOWN:
        return f"{incident.confidence} that {incident.culprit} is the culprit"
    if incident.culprit.node is None:
        return f"{incident.confidence}: nobody can be named"
    return f"{incident.confidence}: {incident.culprit} is concerned, and nobody is proved to be the culprit"


def _cost(incident: Incident) -> str:
    detected = f"It was detected {seconds(incident.time_to_detect_s)} after it began"
    if is_report(incident) or incident.state is IncidentState.OBSERVED:
        return f"{detected}; nothing was done about it."
    if healed_no_round(incident):
        return f"{detected}; no round had to be healed."
    if runs_again(incident):
        return f"{detected}; workers run again, and no new step was seen."
    if incident.time_to_recover_s is None:
        return f"{detected}; no new step has completed since."
    lost = "an unknown number of steps" if incident.lost_steps is None else f"{incident.lost_steps} steps"
    return (
        f"{detected}; the first new step completed {seconds(incident.time_to_recover_s)} after it; it cost {lost}."
    )
