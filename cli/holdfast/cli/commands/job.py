"""`holdfast status|ranks|nodes|logs`: where a job is now, and what its workers wrote."""

import click

from holdfast.cli.logs import LogRequest
from holdfast.cli.output import ExitCode, Format, emit, format_option
from holdfast.cli.site import open_site
from holdfast.cli.target import JobWord, Target, target_options
from holdfast.cli.view import (
    job_name,
    jobs_text,
    jobs_wide_text,
    nodes_text,
    nodes_wide_text,
    rank_shown,
    ranks_text,
    ranks_wide_text,
    status_text,
    status_wide_text,
)


@click.command()
@target_options(JobWord.ARGUMENT, of_many=True)
@format_option
def status(target: Target, form: Format) -> ExitCode:
    """Where JOB is: phase, round, members, step, loss. Several jobs are listed, one per line.

    Of a run on this machine that is over it is what was last known. While the watchdog of a cluster is away the
    answer comes from the TrainingJob's status, and stderr says so; exits with 3 when neither answers.
    """
    site = open_site(target)
    every = () if target.job is not None else site.statuses()
    if target.job is None and (len(every) != 1 or target.all_namespaces):
        names = [job_name(each.job) for each in every]
        return emit(form, every, table=jobs_text, wide=jobs_wide_text, names=names)
    found = site.source().status()
    return emit(form, found, table=status_text, wide=status_wide_text, names=[job_name(found.job)])


@click.command()
@target_options(JobWord.ARGUMENT)
@format_option
def ranks(target: Target, form: Format) -> ExitCode:
    """Every rank of JOB's round: node, process state, phase, step, loss. A question mark is Unknown.

    Of a job that is over it is what was last known of them, and stderr says so.
    """
    found = open_site(target).source().ranks()
    return emit(
        form,
        [rank_shown(rank) for rank in found],
        table=lambda _: ranks_text(found),
        wide=lambda _: ranks_wide_text(found),
        names=[f"rank/{rank.rank}" for rank in found],
    )


@click.command()
@target_options(JobWord.ARGUMENT)
@format_option
def nodes(target: Target, form: Format) -> ExitCode:
    """Every node of JOB as its agent last reported it; -o wide shows every GPU.

    Of a job that is over it is what was last known of them, and stderr says so.
    """
    found = open_site(target).source().nodes()
    return emit(form, found, table=nodes_text, wide=nodes_wide_text, names=[f"node/{each.node}" for each in found])


def duration_s(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """A duration as the job file has it. Raises BadParameter."""
    if value is None:
        return None
    from holdfast.api.quantity import DURATION_FIX, parse_duration

    duration = parse_duration(value)
    if duration is None:
        raise click.BadParameter(f"{value!r} is not accepted; {DURATION_FIX}", ctx, parameter)
    return duration.total_seconds()


@click.command()
@target_options(JobWord.ARGUMENT)
@click.option(
    "-r", "--rank", type=click.IntRange(min=0), help="The worker of this rank; by default of every rank."
)
@click.option("--node", metavar="NAME", help="The workers on this node.")
@click.option("-p", "--previous", is_flag=True, help="The process before the rank's last restart.")
@click.option("-f", "--follow", is_flag=True, help="Print new lines as they are written, until the run ends.")
@click.option(
    "--tail", type=click.IntRange(min=0), help="Lines of each rank at most.  [default: 10, of one rank all]"
)
@click.option(
    "--since",
    metavar="DURATION",
    callback=duration_s,
    help="How far back, such as 10m: in a cluster by line, on this machine workers that wrote since then.",
)
def logs(
    rank: int | None,
    node: str | None,
    previous: bool,
    follow: bool,
    tail: int | None,
    since: float | None,
    target: Target,
) -> ExitCode:
    """What the workers of JOB wrote: stdout and stderr, with the rank before each line where there are several.

    Of a run on this machine, also after its end, from the files of its state directory. In a cluster from the log
    of the rank's pod, through the API server; of a pod that is gone the end of it, which the watchdog kept.
    """
    request = LogRequest(rank=rank, node=node, is_previous=previous, tail=tail, since_s=since, follows=follow)
    for line in open_site(target).source().logs(request):
        click.echo(str(line))
    return ExitCode.OK
