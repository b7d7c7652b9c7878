"""`holdfast slurm`: the job file on nodes of a Slurm cluster."""

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from holdfast.agent.launch.host import address_towards
from holdfast.api.errors import HoldfastError, InvalidInput, Problem, Unavailable
from holdfast.cli.commands.run import conclude
from holdfast.cli.embedded.audience import LineAudience
from holdfast.cli.embedded.jobfile import Prepared, prepare, read_job_file
from holdfast.cli.embedded.session import Interrupted
from holdfast.cli.hosts.session import GivenBack, HostRunOptions, run_on_hosts
from holdfast.cli.output import ExitCode, remark
from holdfast.cli.slurm.allocation import DRAIN_COMMAND, Allocation, allocation_from
from holdfast.cli.slurm.batchscript import SAVE_BEFORE_S, BatchScript, means_nothing
from holdfast.cli.slurm.controller import hosts_of, nodes, time_left_s
from holdfast.cli.statedirectory import StateDirectory, state_directory_of

SIGNAL_EARLY_S = 60  # Source: --signal in https://slurm.schedmd.com/sbatch.html
ASKED_PORT = 9  # any: only the route to it is asked for
# A server of NFS 4 keeps the lock of a node that was lost for one lease, 90 s unless set.
# Source: https://docs.netapp.com/us-en/ontap/nfs-admin/nfsv4-file-record-locking-concept.html (30 s there),
# https://github.com/torvalds/linux/blob/v6.12/fs/nfsd/nfsctl.c (nfsd4_lease = 90)
WAITS_FOR_LOCK_S = 150.0


@click.command()
@click.argument("job_file", type=click.Path(path_type=Path))
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the job keeps its state, in a folder that all nodes share.",
)
@click.option(
    "--sbatch", "asked", multiple=True, metavar="OPTION", help="One of sbatch's own: --sbatch=--time=24:00:00."
)
@click.option("--script", is_flag=True, help="Write the batch script to standard output, and submit nothing.")
@click.option("--here", is_flag=True, help="Run in the allocation that this is called in; the script does.")
@click.option(
    "--save-before",
    type=click.IntRange(min=60, max=65535),
    default=SAVE_BEFORE_S,
    show_default=True,
    help="Seconds before the time limit from which on the job is saved and queued again.",
)
@click.option(
    "--drain-with",
    default=" ".join(DRAIN_COMMAND),
    show_default=True,
    metavar="COMMAND",
    help="What drains a node that is proved bad; it needs the rights to.",
)
@click.option(
    "--simulate-gpus", is_flag=True, help="A rehearsal: GPUs are simulated, and their faults are scripted."
)
@click.option("--kernel-log", default="auto", show_default=True, help="As the agent's: auto, off or a log file.")
def slurm(
    job_file: Path, state_dir: Path | None, asked: tuple[str, ...], script: bool, here: bool, **settings: Any
) -> ExitCode:
    """Submit JOB_FILE to Slurm: its nodes, and its spares with them, are one allocation.

    A lost node is healed inside the allocation. Before the time limit the job is saved and queued again, and goes
    on from there; so it does when too few nodes are left. Exits with 0 when it was submitted. In the allocation it
    ends as `holdfast run` does, and with 3 when it is to be queued again.
    """
    job = read_job_file(job_file)
    directory = StateDirectory(state_dir.absolute()) if state_dir else state_directory_of(*job.id.split("/"))
    prepared = prepare(job, job_file, None, directory.checkpoints, takes_stores=True)
    if here:
        if script or asked:
            fix = "leave --script and --sbatch out: nothing is submitted"
            raise InvalidInput(Problem("--here", value=True, fix=fix))
        return asyncio.run(_run_here(prepared, job_file, directory, Settings(**settings)))
    for sentence in means_nothing(job):
        remark(sentence)
    own = Settings(**settings)
    text = BatchScript(
        job=job,
        command=(
            *(sys.executable, "-m", "holdfast.cli", "slurm", "--here", "--state-dir", str(directory.root)),
            *own.flags(),
            str(job_file.absolute()),
        ),
        output=str(directory.logs),
        asked=asked,
        save_before_s=own.save_before,
    ).text()
    if script:
        click.echo(text, nl=False)
        return ExitCode.OK
    return _submit(directory, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the batch script hands on into the allocation, by the flags' names."""

    save_before: int
    drain_with: str
    simulate_gpus: bool
    kernel_log: str

    def flags(self) -> tuple[str, ...]:
        """As they were given."""
        given = ("--save-before", str(self.save_before), "--drain-with", self.drain_with)
        return (*given, "--kernel-log", self.kernel_log, *(["--simulate-gpus"] if self.simulate_gpus else []))


async def _run_here(prepared: Prepared, job_file: Path, directory: StateDirectory, settings: Settings) -> ExitCode:
    """Be the batch step. Raises HoldfastError when the run cannot go on."""
    job_id, nodelist = allocation_from(os.environ)
    left_s = await time_left_s(job_id)
    if left_s is not None and left_s < settings.save_before + SIGNAL_EARLY_S:
        # The signal comes at once: the job would be saved and queued again for ever, and train nothing.
        fix = f"it must be longer than --save-before ({settings.save_before} s) by some minutes"
        raise InvalidInput(Problem("the job's time limit", f"{left_s:.0f} s are left", fix))
    hosts = await hosts_of(nodelist)
    lines = await nodes(hosts)
    # The way to the others is the way from them: with one node alone, any address will do.
    others = [lines[host].address for host in hosts[1:] if host in lines] or ["127.0.0.1"]
    allocation = Allocation(job_id, hosts, directory.drained, tuple(settings.drain_with.split()))
    options = HostRunOptions(
        prepared=prepared,
        job_file=str(job_file.absolute()),
        directory=directory,
        hosts=hosts,
        reach=allocation,
        address=address_towards(others[0], ASKED_PORT),
        python=sys.executable,
        shares_logs=True,
        # What is left of it when the save is over is for Slurm's own ways.
        save_within_s=settings.save_before * 0.7,
        waits_for_lock_s=WAITS_FOR_LOCK_S,
        simulated_gpus=prepared.job.spec.local_size() if settings.simulate_gpus else 0,
        kernel_log=settings.kernel_log,
        when_alone=allocation.requeue_command(),
    )
    audience = LineAudience(time.monotonic)
    audience.say(f"Slurm job {job_id} on {nodelist}; state and logs are in {directory.root}")
    try:
        return conclude(await run_on_hosts(options, audience), says_how_to_go_on=False)
    except Interrupted:
        return ExitCode.INTERRUPTED
    except GivenBack:
        try:
            await allocation.requeue()
        except HoldfastError as error:
            audience.say(f"the job could not be queued again ({error}); submit it again, and it goes on")
        else:
            audience.say(f"Slurm job {job_id} is queued again, and goes on from the newest checkpoint")
        return ExitCode.UNAVAILABLE


def _submit(directory: StateDirectory, text: str) -> ExitCode:
    """Hand the script to sbatch, and keep it in the state directory. Raises Unavailable."""
    directory.logs.mkdir(parents=True, exist_ok=True)
    file = directory.root / "job.sbatch"
    file.write_text(text)
    try:
        said = subprocess.run(("sbatch", "--parsable", str(file)), capture_output=True, text=True, check=False)
    except OSError as error:
        raise Unavailable(
            f"sbatch cannot be run here ({error.strerror}); --script writes what it would be given"
        ) from error
    if said.returncode:
        raise Unavailable(f"sbatch says: {' '.join(said.stderr.split())}")
    click.echo(said.stdout.strip().partition(";")[0])
    remark(
        f"submitted; what happens is told in {directory.logs}, and `holdfast status --state-dir {directory.root}`"
    )
    return ExitCode.OK
