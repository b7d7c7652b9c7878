"""What people are shown of incidents: pure functions from what is known to text."""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import CAUSE_WITHIN_S, Incident, IncidentState, Rung
from holdfast.cli.output import UNKNOWN, number, pairs, seconds, table

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
INCIDENT_HEADERS = ("INCIDENT", "KIND", "CULPRIT", "CAUSE", "RUNG", "DETECTED", "NEW STEP", "STEPS LOST", "STATE")
RECORDED_HEADERS = ("INCIDENT", "KIND", "CULPRIT", "CAUSE", "ACTION", "NEW STEP", "STATE")


def culprit_text(incident: Incident) -> str:
    """Who it was, with a question mark where nobody knows. A GPU's UUID is cut to what tells it apart in a job."""
    if incident.kind is FindingKind.NOTHING_TO_RESTORE:
        return "the checkpoints"
    if incident.kind is FindingKind.USER_CODE:
        return f"the script, {incident.culprit}"
    if incident.innocent:
        return incident.blamed
    cut = [msgspec.structs.replace(each, gpu=each.gpu and each.gpu[:GPU_WIDTH]) for each in incident.named]
    return _doubted(incident, cut)


def _doubted(incident: Incident, named: Sequence[Subject]) -> str:
    """`node a?` where a node is named for being concerned and not for being at fault."""
    doubted = incident.culprit.node is not None and incident.confidence is Confidence.UNKNOWN
    return f"{incident.in_words(named)}{'?' if doubted else ''}"


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
    rows = [_incident_row(each, _cause_in_one_line(each)) for each in incidents]
    return table(INCIDENT_HEADERS, rows) if rows else "no incident"


def incidents_wide_text(incidents: Sequence[Incident]) -> str:
    """The same with every word of the cause, and in which round it broke."""
    rows = []
    for each in incidents:
        rounds = f"{number(each.round)} to {number(each.recovered_round)}"
        rows.append((*_incident_row(each, " ".join(f"{each.cause}{_slowed(each)}".split())), rounds))
    return table((*INCIDENT_HEADERS, "ROUND"), rows) if rows else "no incident"


def _cause_in_one_line(incident: Incident) -> str:
    """What slowness costs is not cut off."""
    cost = _slowed(incident)
    return in_one_line(incident.cause, CAUSE_WIDTH - len(cost)) + cost


def _slowed(incident: Incident) -> str:
    return "" if incident.slowed is None else f", {incident.slowed.rank_hours:.3g} rank-hours"


def _incident_row(incident: Incident, cause: str) -> tuple[str, ...]:
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
        hours = incident.get("slowedRankHours")
        cost = f", {hours:.3g} rank-hours" if isinstance(hours, int | float) else ""
        cause, action = told.get("cause", UNKNOWN), told.get("action", UNKNOWN)
        long = (in_one_line(cause, CAUSE_WIDTH - len(cost)) + cost, in_one_line(action))
        recovered = incident.get("timeToRecoverSeconds")
        recovered_s = float(recovered) if isinstance(recovered, int | float) else None
        rows.append((*named, *long, seconds(recovered_s), told.get("state", UNKNOWN)))
    return table(RECORDED_HEADERS, rows) if incidents else "no incident"


def story(incident: Incident) -> str:
    """Everything known of one incident, for somebody who was not there."""
    state = "was reported" if is_report(incident) else f"is {incident.state.value.lower()}"
    is_named_whole = not incident.innocent and incident.kind not in _NOBODY
    whose = _doubted(incident, incident.named) if is_named_whole else culprit_text(incident)
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
        f"It {state}. {_cost(incident)}{_cost_of_slowness(incident)}",
        pairs(
            [
                ("cause", incident.cause),
                ("confidence", confidence_text(incident)),
                ("known", known_text(incident)),
            ]
        ),
        *("\n".join([title, *(f"  {line}" for line in lines)]) for title, lines in told.items() if lines),
    ]
    return "\n\n".join(parts)


def known_text(incident: Incident) -> str:
    """How soon the cause was known, beside the target."""
    target = f"target {seconds(CAUSE_WITHIN_S)}"
    took_s = incident.time_to_cause_s
    if took_s is None and incident.has_known_cause:
        return f"at a time that was not recorded ({target})"
    if took_s is None:
        return f"not yet ({target})" if incident.state is IncidentState.OPEN else f"never ({target})"
    if took_s == 0.0:
        return f"when it was detected ({target})"
    late = "" if took_s <= CAUSE_WITHIN_S else ": missed"
    return f"{seconds(took_s)} after it was detected ({target}{late})"


def confidence_text(incident: Incident) -> str:
    """How sure it is who was at fault."""
    if incident.kind is FindingKind.USER_CODE:
        return f"{incident.confidence} that the script raised it; no node is to blame"
    if incident.kind is FindingKind.NOTHING_TO_RESTORE:
        return f"{incident.confidence} that none can be restored; no node is to blame"
    if incident.is_scripts:
        return f"{incident.confidence} that it is what the script does; no node is to blame"
    if incident.innocent:
        return f"{incident.confidence} that the pod was ended; node {incident.culprit.node} is not to blame"
    if incident.confidence is not Confidence.UNKNOWN:
        is_one = "is the culprit" if not incident.also else "are the culprits"
        return f"{incident.confidence} that {incident.blamed} {is_one}"
    if incident.culprit.node is None:
        return f"{incident.confidence}: nobody can be named"
    concerned = "is concerned" if not incident.also else "may be concerned"
    return f"{incident.confidence}: {incident.blamed} {concerned}, and nobody is proved to be the culprit"


def _cost_of_slowness(incident: Incident) -> str:
    """In hours of one rank, which are GPU-hours where each has a GPU."""
    if (slowed := incident.slowed) is None:
        return ""
    return (
        f" So far all ranks waited {seconds(slowed.excess_s)} in each of {slowed.steps} steps: "
        f"{slowed.rank_hours:.3g} rank-hours (GPU-hours, where each rank has a GPU)."
    )


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
