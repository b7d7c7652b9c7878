"""`holdfast ranks`."""

import click

from holdfast.cli.exitcode import ExitCode
from holdfast.cli.opening import open_site
from holdfast.cli.output import Format, Shown, emit, format_option
from holdfast.cli.target import JobWord, Target, target_options
from holdfast.cli.view.status import rank_shown, ranks_text, ranks_wide_text


@click.command()
@target_options(JobWord.ARGUMENT)
@format_option
def ranks(target: Target, form: Format) -> ExitCode:
    """Every rank of JOB's round: node, process state, phase, step, loss. A question mark is Unknown.

    Of a job that is over it is what was last known of them, and stderr says so.
    """
    found = open_site(target).source().ranks()
    emit(
        Shown(
            value=[rank_shown(rank) for rank in found],
            table=lambda: ranks_text(found),
            wide=lambda: ranks_wide_text(found),
            names=lambda: [f"rank/{rank.rank}" for rank in found],
        ),
        form,
    )
    return ExitCode.OK
