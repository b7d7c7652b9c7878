"""`holdfast ranks`."""

from pathlib import Path

import click

from holdfast.cli.archive import connect
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.output import Format, emit, format_option, state_option
from holdfast.cli.view.status import ranks_text


@click.command()
@state_option
@format_option
def ranks(state_dir: Path | None, form: Format) -> ExitCode:
    """Every rank of the round: node, process state, phase, step, loss. A question mark is Unknown."""
    found = connect(state_dir).ranks()
    emit(found, form, lambda: ranks_text(found))
    return ExitCode.OK
