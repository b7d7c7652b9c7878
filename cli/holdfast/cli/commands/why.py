"""`holdfast why`."""

from collections.abc import Sequence

import click

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.incident import Incident
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.opening import open_site
from holdfast.cli.output import Format, Shown, emit, format_option
from holdfast.cli.seen import RecordedIncidents
from holdfast.cli.target import JobWord, Target, target_options
from holdfast.cli.view.incident import story


@click.command()
@click.argument("incident", default="last")
@target_options(JobWord.OPTION)
@format_option
def why(incident: str, target: Target, form: Format) -> ExitCode:
    """The whole story of INCIDENT ("last": the newest): culprit, evidence, actions with reasons, cost."""
    kept = open_site(target).source().incidents()
    if isinstance(kept, RecordedIncidents):
        raise Unavailable("the whole story is at the watchdog, which is away; `incidents` shows what is recorded")
    found = pick(kept, incident)
    emit(Shown(value=found, table=lambda: story(found), names=lambda: [f"incident/{found.id}"]), form)
    return ExitCode.OK


def pick(incidents: Sequence[Incident], wanted: str) -> Incident:
    """The incident called `wanted`, or the newest for "last". Raises InvalidInput when there is none."""
    if not incidents:
        raise InvalidInput(Problem("incident", wanted, "this job has had no incident"))
    if wanted == "last":
        return incidents[-1]
    for incident in incidents:
        if incident.id == wanted:
            return incident
    newest = ", ".join(incident.id for incident in incidents[-5:])
    raise InvalidInput(Problem("incident", wanted, f"the newest are {newest}"))
