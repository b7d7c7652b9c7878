"""`holdfast run`."""

import asyncio
import ipaddress
import time
from dataclasses import dataclass
from pathlib import Path

import click

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.finding import FindingKind
from holdfast.api.status import JobPhase
from holdfast.cli.embedded.audience import Audience, LineAudience
from holdfast.cli.embedded.faultscript import check_whom, read_fault_script
from holdfast.cli.embedded.jobfile import prepare, read_job_file
from holdfast.cli.embedded.placement import PlacementOptions, Replacing
from holdfast.cli.embedded.session import Beginning, Conduct, Interrupted, RunOptions, run_session
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.statedirectory import StateDirectory, state_directory_of
from holdfast.cli.view.news import Picture

ERROR_LINES = 15


@click.command()
@click.argument("job_file", type=click.Path(path_type=Path))
@click.option("--nodes", type=click.IntRange(min=1), help="Local nodes at most; lowers spec.nodes.max.")
@click.option("--faults", type=click.Path(path_type=Path), help="A script of faults to inject.")
@click.option(
    "--state-dir", type=click.Path(path_type=Path, file_okay=False), help="Where the run keeps its state."
)
@click.option("--fresh", is_flag=True, help="Start over: remove what an earlier run of this job left.")
@click.option("--listen", default="127.0.0.1:0", show_default=True, help="Where the watchdog listens.")
@click.option("--observe", is_flag=True, help="Tell what would be done about each fault, and do nothing.")
@click.option("--replace/--no-replace", default=True, help="Whether lost nodes are replaced.  [default: replace]")
@click.option("--replace-delay", default=2.0, show_default=True, help="Seconds until a replacement comes.")
def run(
    job_file: Path,
    nodes: int | None,
    faults: Path | None,
    state_dir: Path | None,
    fresh: bool,
    listen: str,
    observe: bool,
    replace: bool,
    replace_delay: float,
) -> ExitCode:
    """Run JOB_FILE on this machine: each node is a process, and what breaks is healed.

    The entry point is looked up beside the job file, and runs there. State goes to --state-dir, by default
    ./.holdfast/NAMESPACE-NAME; the same command again resumes a run that was stopped. With --observe each fault is
    an incident that says what would be done; nothing is, and a job which loses a worker or a node ends.
    Exits with 0 when the job succeeded, 1 when it failed or a fault of the script was not injected, 2 when a file
    or flag is wrong, 3 when something is not there, 130 after Ctrl-C.
    """
    job = read_job_file(job_file)
    script = read_fault_script(faults) if faults else ()
    check_whom(script, nodes_max=nodes or job.spec.nodes.max, local_size=job.spec.local_size())
    directory = StateDirectory(state_dir.absolute()) if state_dir else state_directory_of(*job.id.split("/"))
    _check_listen(listen)
    options = RunOptions(
        prepared=prepare(job, job_file, nodes, directory.checkpoints),
        job_file=str(job_file.absolute()),
        directory=directory,
        faults=script,
        placement=PlacementOptions(Replacing.ALLOWED if replace else Replacing.REFUSED, replace_delay),
        listen=listen,
        beginning=Beginning.FRESH if fresh else Beginning.RESUME,
        conduct=Conduct.OBSERVE if observe else Conduct.HEAL,
    )
    return run_to_end(options, LineAudience(time.monotonic))


@dataclass(frozen=True, slots=True)
class Again:
    """What a command says about being given again."""

    succeeded: str = ""
    failed: str = ""
    failed_unsaved: str = ""
    failed_unusable: str = ""


AGAIN = Again(
    succeeded="; --fresh starts it over",
    failed="; the same command goes on from the newest checkpoint, --fresh starts it over",
    failed_unsaved="; no checkpoint was saved, so the same command begins anew",
    failed_unusable="; --fresh starts it over",
)


def run_to_end(options: RunOptions, audience: Audience) -> ExitCode:
    """Run, say how it ended, and return the exit code."""
    audience.say(f"state and logs are in {options.directory.root}")
    try:
        picture = asyncio.run(run_session(options, audience))
    except Interrupted:
        click.echo("stopped; the same command goes on from the newest checkpoint, if one was saved", err=True)
        return ExitCode.INTERRUPTED
    return conclude(picture, again=AGAIN)


def conclude(picture: Picture, *, again: Again) -> ExitCode:
    """Say how the job ended, and how to go on from there. A drill that did not happen is a failure as well."""
    status = picture.status
    for missed in picture.missed:
        click.echo(f"NOT INJECTED: {missed}", err=True)
    if status.phase is JobPhase.SUCCEEDED:
        click.echo(f"{status.job} succeeded{again.succeeded}", err=True)
        return ExitCode.FAILED if picture.missed else ExitCode.OK
    going_on = again.failed_unsaved if status.last_checkpoint is None else again.failed
    if picture.incidents and picture.incidents[-1].kind is FindingKind.NOTHING_TO_RESTORE:
        going_on = again.failed_unusable
    # The last error's text follows below, in full.
    reason = status.reason.partition("; last error:")[0].partition("\n")[0]
    click.echo(f"{status.job} failed: {reason}{going_on}", err=True)
    errors = [incident.error for incident in picture.incidents if incident.error]
    for line in errors[-1].splitlines()[-ERROR_LINES:] if errors else ():
        click.echo(f"  {line}", err=True)
    return ExitCode.FAILED


def _check_listen(listen: str) -> None:
    """The watchdog refuses the same, but only once it runs, where it looks like a fault."""
    host, colon, port = listen.rpartition(":")
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not colon or not is_loopback or not port.isdecimal() or int(port) > 65535:
        fix = "write HOST:PORT with a loopback address, such as 127.0.0.1:0; traffic is not encrypted"
        raise InvalidInput(Problem("--listen", listen, fix))
