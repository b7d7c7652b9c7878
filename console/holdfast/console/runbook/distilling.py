"""A check made of an incident: the same fault is found again by it, wherever it comes."""

import re
from itertools import accumulate
from typing import Final

from holdfast.api.condition import ConditionKind
from holdfast.api.incident import Incident, IncidentState
from holdfast.console.runbook.symptom import symptom_of
from holdfast.console.runbook.written import (
    FORMAT,
    PATTERN_LENGTH_MAX,
    ConditionFact,
    Fact,
    IncidentFact,
    WrittenCheck,
)

LIKELY: Final = 50
"""Of a hundred calls with the symptom: our judgement of what happened once already. The file can say another."""
_WORDS_MAX: Final = 400
_CAUSE_MAX: Final = 120


def distilled(incident: Incident) -> WrittenCheck:
    """The check: its kind and cause, which are the class of a fault, and the condition, if it was one."""
    facts = [Fact(incident=IncidentFact(incident.kind, _literal(incident.cause)))]
    if incident.cause in {each.value for each in ConditionKind}:
        facts.append(Fact(condition=ConditionFact(ConditionKind(incident.cause))))
    cause = _line(incident.cause, _CAUSE_MAX)
    slug = re.sub(r"[^a-z0-9]+", "-", f"{incident.kind}-{incident.cause}".lower()).strip("-")
    return WrittenCheck(
        format=FORMAT,
        id=f"again-{slug}"[:64].rstrip("-"),
        title=f"{incident.kind} again: {cause}",
        symptoms={symptom_of(incident): LIKELY},
        facts=tuple(facts),
        learned=_line(_learned(incident), _WORDS_MAX),
        source=_line(f"{incident.id} of {incident.job}", _WORDS_MAX),
        next=("why {incident}",),
    )


def _learned(incident: Incident) -> str:
    """What came of it, for who meets it next."""
    who = f"it was {incident.blamed}" if incident.has_known_cause else "nobody knows who it was"
    does = incident.actions[-1].does if incident.actions else "nothing was done"
    if incident.state is IncidentState.OPEN:
        ended = "it is open"
    elif incident.time_to_recover_s is not None:
        ended = f"the first new step came after {incident.time_to_recover_s:.0f} s"
    else:
        ended = f"it ended as {incident.state.value}"
    return f"in {incident.id} {who}; {does}; {ended}"


def _literal(text: str) -> str:
    """A pattern that fits this text alone; of a long one its beginning."""
    signs = [f"[{sign}]" if sign in "*?[" else sign for sign in text]
    whole = "".join(signs)
    if len(whole) <= PATTERN_LENGTH_MAX:
        return whole
    lengths = accumulate(map(len, signs))
    return "".join(sign for sign, length in zip(signs, lengths, strict=True) if length < PATTERN_LENGTH_MAX) + "*"


def _line(text: str, most: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"
