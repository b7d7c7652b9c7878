"""`holdfast incidents`."""

from pathlib import Path

import click

from holdfast.cli.archive import read_incidents
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.output import Format, emit, format_option, state_option
from holdfast.cli.view.incident import incidents_text


@click.command()
@state_option
@format_option
def incidents(state_dir: Path | None, form: Format) -> ExitCode:
    """What broke, oldest first. Works after the run as well, from what the watchdog stored."""
    found = read_incidents(state_dir)
    emit(found, form, lambda: incidents_text(found))
    return ExitCode.OK
