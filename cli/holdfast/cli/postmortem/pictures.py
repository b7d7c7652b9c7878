"""The plots around an incident, or why there is none."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from types import MappingProxyType
from typing import Final

from holdfast.api.incident import Incident
from holdfast.cli.output import number
from holdfast.cli.postmortem.case import Case
from holdfast.cli.postmortem.document import Block, Paragraph, Picture
from holdfast.cli.postmortem.plot import svg

_LEAST_MARGIN_S: Final = 60.0
SHOWN: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "loss": ("Loss, median of the ranks", "loss"),
        "tokens_s": ("Tokens a second, all ranks", "tokens/s"),
        "step_s": ("Step time, slowest rank", "s"),
    }
)


def window(began: float, ended: float) -> tuple[float, float]:
    """What is looked at of an incident of that time: as long again before and after it, a minute at least."""
    margin = max(_LEAST_MARGIN_S, ended - began)
    return began - margin, ended + margin


def pictures(case: Case, incident: Incident) -> Iterator[Block]:
    """Loss, tokens and step time as far as they were heard, and the steps that were journaled."""
    ended = case.ended(incident)
    span = window(incident.began_at, ended)
    marks = {"began": incident.began_at, "detected": incident.detected_at}
    if incident.recovered_at is not None:
        marks["recovered"] = incident.recovered_at
    heard = case.figures.between(*span)
    missing = []
    for name, (title, unit) in SHOWN.items():
        points = heard.known(name)
        if points:
            yield Picture(svg(points, span, marks, unit), f"{title}: {_told(points, incident.began_at, ended)}.")
        else:
            missing.append(unit)
    if missing:
        why = "a console that follows the job hears them, for as long as it runs"
        yield Paragraph(f"Nobody heard {', '.join(missing)} in this time: {why}.")
    steps = [(at, step) for at, step in case.steps if span[0] <= at <= span[1]]
    if len(steps) > 1:
        yield Picture(svg(steps, span, marks, "step"), "Steps complete on every rank, as they were journaled.")
    if len(missing) < len(SHOWN) or len(steps) > 1:
        yield Paragraph("Broken lines: red began, orange detected, green the first new step.")


def _told(points: Sequence[tuple[float, float]], began: float, ended: float) -> str:
    """The medians before and after, for who sees no picture."""
    before = [value for at, value in points if at < began]
    after = [value for at, value in points if at > ended]
    words = [f"{number(median(each))} {when}" for each, when in ((before, "before"), (after, "after")) if each]
    return ", ".join(words) or "nothing was heard before or after"
