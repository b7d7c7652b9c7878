"""`holdfast journal`."""

import click
import msgspec

from holdfast.cli.exitcode import ExitCode
from holdfast.cli.opening import open_site
from holdfast.cli.output import Format, Shown, emit, format_option
from holdfast.cli.target import JobWord, Target, target_options
from holdfast.cli.view.journal import journal_line


@click.command()
@click.option("--after", type=click.IntRange(min=0), default=0, show_default=True, help="Skip the lines up to it.")
@target_options(JobWord.ARGUMENT)
@format_option
def journal(after: int, target: Target, form: Format) -> ExitCode:
    """Every event of JOB that was recorded, oldest first. -o json writes one event a line."""
    lines = open_site(target).source().journal(after)
    if form in (Format.TABLE, Format.WIDE):
        for line in lines:
            click.echo(journal_line(line))
    elif form is Format.JSON:
        for line in lines:
            click.echo(msgspec.json.encode(line))
    else:
        every = tuple(lines)
        emit(Shown(value=every, table=str, names=lambda: [f"event/{line.offset}" for line in every]), form)
    return ExitCode.OK
