"""`holdfast journal`."""

from collections.abc import Iterator

import click
import msgspec

from holdfast.api.event import Journaled
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.output import Format, Shown, emit, format_option
from holdfast.cli.site import JobSource, open_site
from holdfast.cli.target import JobWord, Target, target_options
from holdfast.cli.view.journal import journal_line


@click.command()
@click.option("--after", type=click.IntRange(min=0), default=0, show_default=True, help="Skip the lines up to it.")
@target_options(JobWord.ARGUMENT)
@format_option
def journal(after: int, target: Target, form: Format) -> ExitCode:
    """Every event of JOB that was recorded, oldest first. -o json writes one event a line."""
    lines = read_journal(open_site(target).source(), after)
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


def read_journal(source: JobSource, after: int) -> Iterator[Journaled]:
    """Line by line behind `after`. Raises as the reads of `source`."""
    from holdfast.cli.localsite import LocalSource

    if isinstance(source, LocalSource):
        yield from source.journal(after)
        return
    client = source.client()
    onward: int | None = after
    while onward is not None:
        page = client.journal(onward)
        yield from page.lines
        onward = page.next_after
