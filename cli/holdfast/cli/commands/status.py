"""`holdfast status`."""

import click

from holdfast.cli.exitcode import ExitCode
from holdfast.cli.opening import open_site
from holdfast.cli.output import Format, Shown, emit, format_option
from holdfast.cli.target import Breadth, JobWord, Target, target_options
from holdfast.cli.view.status import job_name, jobs_text, jobs_wide_text, status_text, status_wide_text


@click.command()
@target_options(JobWord.ARGUMENT, breadth=Breadth.ALL)
@format_option
def status(target: Target, form: Format) -> ExitCode:
    """Where JOB is: phase, round, members, step, loss. Several jobs are listed, one a line.

    Of a run on this machine that is over it is what was last known. While the watchdog of a cluster is away the
    answer comes from the TrainingJob's status, and stderr says so; exits with 3 when neither answers.
    """
    site = open_site(target)
    if target.job is None:
        every = site.statuses()
        if len(every) != 1 or target.breadth is Breadth.ALL:
            emit(
                Shown(
                    value=every,
                    table=lambda: jobs_text(every),
                    wide=lambda: jobs_wide_text(every),
                    names=lambda: [job_name(each.job) for each in every],
                ),
                form,
            )
            return ExitCode.OK
    found = site.source().status()
    emit(
        Shown(
            value=found,
            table=lambda: status_text(found),
            wide=lambda: status_wide_text(found),
            names=lambda: [job_name(found.job)],
        ),
        form,
    )
    return ExitCode.OK
