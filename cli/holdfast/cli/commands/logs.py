"""`holdfast logs`."""

import click

from holdfast.cli.exitcode import ExitCode
from holdfast.cli.logs import Ending, LogRequest, Which
from holdfast.cli.opening import open_site
from holdfast.cli.target import JobWord, Target, target_options


def _seconds(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
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
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written, until the run ends.")
@click.option(
    "--tail", type=click.IntRange(min=0), help="Lines of each rank at most.  [default: 10, of one rank all]"
)
@click.option(
    "--since",
    metavar="DURATION",
    callback=_seconds,
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
    """What the workers of JOB wrote: both streams, with the rank before each line where there are several.

    Of a run on this machine, also after its end, from the files of its state directory. In a cluster from the log
    of the rank's pod, through the API server; of a pod that is gone the end of it, which the watchdog kept.
    """
    request = LogRequest(
        rank=rank,
        node=node,
        which=Which.PREVIOUS if previous else Which.NEWEST,
        tail=tail,
        since_s=since,
        ending=Ending.FOLLOW if follow else Ending.AT_END,
    )
    for line in open_site(target).source().logs(request):
        click.echo(str(line))
    return ExitCode.OK
