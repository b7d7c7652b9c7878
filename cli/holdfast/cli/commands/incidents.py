"""`holdfast incidents`."""

import click

from holdfast.cli.exitcode import ExitCode
from holdfast.cli.opening import open_site
from holdfast.cli.output import Format, Shown, emit, format_option
from holdfast.cli.seen import RecordedIncidents
from holdfast.cli.target import JobWord, Target, target_options
from holdfast.cli.view.incident import incidents_text, incidents_wide_text
from holdfast.cli.view.record import recorded_incidents_text


@click.command()
@target_options(JobWord.ARGUMENT)
@format_option
def incidents(target: Target, form: Format) -> ExitCode:
    """What broke in JOB, oldest first.

    A run on this machine is read after its end as well. In a cluster whose watchdog is away the newest incidents
    are read from the TrainingJob's status, which keeps less of them; stderr says so.
    """
    found = open_site(target).source().incidents()
    if isinstance(found, RecordedIncidents):
        kept = found.incidents
        shown = Shown(
            value=kept,
            table=lambda: recorded_incidents_text(kept),
            names=lambda: [f"incident/{each.get('id', '?')}" for each in kept],
        )
    else:
        shown = Shown(
            value=found,
            table=lambda: incidents_text(found),
            wide=lambda: incidents_wide_text(found),
            names=lambda: [f"incident/{each.id}" for each in found],
        )
    emit(shown, form)
    return ExitCode.OK
