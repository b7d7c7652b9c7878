"""Incidents as a TrainingJob's status keeps them, as text. It may be of another version, so it is read loosely."""

from collections.abc import Mapping, Sequence

from holdfast.cli.view.incident import in_one_line
from holdfast.cli.view.table import UNKNOWN, seconds, table

HEADERS = ("INCIDENT", "KIND", "CULPRIT", "CAUSE", "ACTION", "NEW STEP", "STATE")


def recorded_incidents_text(incidents: Sequence[Mapping[str, object]]) -> str:
    """One line per incident, oldest first."""
    return table(HEADERS, [_row(each) for each in incidents]) if incidents else "no incident"


def _row(incident: Mapping[str, object]) -> tuple[str, ...]:
    recovered = incident.get("timeToRecoverSeconds")
    return (
        _word(incident.get("id")),
        _word(incident.get("kind")),
        _word(incident.get("culprit")),
        in_one_line(_word(incident.get("cause"))),
        in_one_line(_word(incident.get("action"))),
        seconds(float(recovered) if isinstance(recovered, int | float) else None),
        _word(incident.get("state")),
    )


def _word(value: object) -> str:
    return UNKNOWN if value is None or value == "" else str(value)
