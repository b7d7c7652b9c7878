"""`holdfast why`."""

from pathlib import Path

import click

from holdfast.cli.archive import pick, read_incidents
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.output import Format, emit, format_option, state_option
from holdfast.cli.view.incident import story


@click.command()
@click.argument("incident", default="last")
@state_option
@format_option
def why(incident: str, state_dir: Path | None, form: Format) -> ExitCode:
    """The whole story of INCIDENT ("last": the newest): culprit, evidence, actions with reasons, cost."""
    found = pick(read_incidents(state_dir), incident)
    emit(found, form, lambda: story(found))
    return ExitCode.OK
