"""`holdfast ssh`: the job file on machines that ssh reaches."""

import asyncio
import os
import shlex
import sys
import time
from pathlib import Path

import click

from holdfast.agent.launch.host import address_towards
from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.cli.commands.run import conclude
from holdfast.cli.embedded.audience import LineAudience
from holdfast.cli.embedded.jobfile import prepare, read_job_file
from holdfast.cli.embedded.session import Interrupted
from holdfast.cli.hosts.session import GivenBack, HostRunOptions, run_on_hosts
from holdfast.cli.hosts.sshhosts import SshHosts, hosts_from
from holdfast.cli.output import ExitCode
from holdfast.cli.statedirectory import StateDirectory, state_directory_of

SSH_PORT = 22


@click.command()
@click.argument("job_file", type=click.Path(path_type=Path))
@click.option("--hosts", required=True, metavar="A,B,C", help="The machines, as ssh takes them; one node each.")
@click.option(
    "--state-dir", type=click.Path(path_type=Path, file_okay=False), help="Where the run keeps its state, here."
)
@click.option("--fresh", is_flag=True, help="Start over: remove what an earlier run of this job left.")
@click.option(
    "--address", help="This machine's IP address, as the others reach it. Default: on the way to the first."
)
@click.option(
    "--python",
    default=sys.executable,
    show_default=True,
    help="The interpreter on each machine that has Holdfast.",
)
@click.option("--ssh", "program", default="ssh", show_default=True, help="The program, and flags of its own.")
@click.option(
    "--simulate-gpus", is_flag=True, help="A rehearsal: GPUs are simulated, and their faults are scripted."
)
def ssh(
    job_file: Path,
    hosts: str,
    state_dir: Path | None,
    fresh: bool,
    address: str | None,
    python: str,
    program: str,
    simulate_gpus: bool,
) -> ExitCode:
    """Run JOB_FILE on machines that ssh reaches without a password; the watchdog runs here.

    Each has Holdfast, and the job file's folder at the same path. Where more machines are named than the job has
    nodes and spares, the others wait. Ctrl-C ends what runs on them; the same command resumes. Exits as
    `holdfast run` does.
    """
    job = read_job_file(job_file)
    directory = StateDirectory(state_dir.absolute()) if state_dir else state_directory_of(*job.id.split("/"))
    names = hosts_from(hosts)
    if len(names) < job.spec.nodes.min:
        raise InvalidInput(
            Problem("--hosts", hosts, f"name {job.spec.nodes.min} or more: spec.nodes.min of the job")
        )
    options = HostRunOptions(
        prepared=prepare(job, job_file, None, directory.checkpoints, takes_stores=True),
        job_file=str(job_file.absolute()),
        directory=directory,
        hosts=names,
        reach=SshHosts(tuple(shlex.split(program))),
        address=address or address_of(names[0]),
        python=python,
        shares_logs=False,
        starts_over=fresh,
        simulated_gpus=job.spec.local_size() if simulate_gpus else 0,
    )
    audience = LineAudience(time.monotonic)
    audience.say(f"state and logs are in {directory.root}; this is process {os.getpid()}")
    try:
        return conclude(asyncio.run(run_on_hosts(options, audience)), says_how_to_go_on=True)
    except Interrupted:
        click.echo("stopped; the same command goes on from the newest checkpoint, if one was saved", err=True)
        return ExitCode.INTERRUPTED
    except GivenBack as reason:
        audience.say(f"stopped ({reason}); the same command with other --hosts goes on from the newest checkpoint")
        return ExitCode.UNAVAILABLE


def address_of(host: str) -> str:
    """This machine's address on the way to a host. Raises InvalidInput where its name is known to ssh alone."""
    try:
        return address_towards(host.rpartition("@")[2], SSH_PORT)
    except Unavailable as error:
        fix = f"say which address of this machine the others reach ({error})"
        raise InvalidInput(Problem("--address", None, fix)) from error
