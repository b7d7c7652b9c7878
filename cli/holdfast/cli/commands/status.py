"""`holdfast status`."""

from pathlib import Path

import click

from holdfast.cli.archive import connect
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.output import Format, emit, format_option, state_option
from holdfast.cli.view.status import status_text


@click.command()
@state_option
@format_option
def status(state_dir: Path | None, form: Format) -> ExitCode:
    """Where a job is: phase, round, members, step, loss. Exits with 3 when its watchdog is away."""
    found = connect(state_dir).status()
    emit(found, form, lambda: status_text(found))
    return ExitCode.OK
