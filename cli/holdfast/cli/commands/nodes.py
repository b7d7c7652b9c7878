"""`holdfast nodes`."""

import click

from holdfast.cli.exitcode import ExitCode
from holdfast.cli.opening import open_site
from holdfast.cli.output import Format, Shown, emit, format_option
from holdfast.cli.target import JobWord, Target, target_options
from holdfast.cli.view.nodes import nodes_text, nodes_wide_text


@click.command()
@target_options(JobWord.ARGUMENT)
@format_option
def nodes(target: Target, form: Format) -> ExitCode:
    """Every node of JOB as its agent last reported it; -o wide shows every GPU.

    Of a job that is over it is what was last known of them, and stderr says so.
    """
    found = open_site(target).source().nodes()
    emit(
        Shown(
            value=found,
            table=lambda: nodes_text(found),
            wide=lambda: nodes_wide_text(found),
            names=lambda: [f"node/{each.node}" for each in found],
        ),
        form,
    )
    return ExitCode.OK
