"""`holdfast run|demo`: a job file on this machine, and the example of this repository with four faults."""

import asyncio
import ipaddress
import sys
import time
from pathlib import Path

import click

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.finding import FindingKind
from holdfast.api.incident import IncidentState
from holdfast.api.status import JobPhase
from holdfast.api.trainingjob import Nodes, TrainingJob
from holdfast.cli.embedded.audience import LineAudience, Picture
from holdfast.cli.embedded.faultscript import After, Deed, ScriptedFault, When, check_whom, read_fault_script
from holdfast.cli.embedded.jobfile import prepare, read_job_file
from holdfast.cli.embedded.localcluster import PlacementOptions
from holdfast.cli.embedded.session import Interrupted, RunOptions, run_session
from holdfast.cli.embedded.stopping import SAVE_WITHIN_S
from holdfast.cli.example import example_job_file
from holdfast.cli.incidentview import incidents_text
from holdfast.cli.output import ExitCode
from holdfast.cli.output import plain as without_commands
from holdfast.cli.statedirectory import DEFAULT_PARENT, StateDirectory, state_directory_of

ERROR_LINES = 15
DEMO_NODES = Nodes(min=2, max=3, spares=1)
DEMO_STEPS_DEFAULT = 300
DEMO_STEPS_MIN = 100  # fewer leave no time between the faults
SIMULATED_GPU_FELL_OFF_THE_BUS = 79

_state_dir_option = click.option(
    "--state-dir", type=click.Path(path_type=Path, file_okay=False), help="Where the run keeps its state."
)
_console_option = click.option(
    "--console/--no-console",
    "has_console",
    default=True,
    envvar="HOLDFAST_CONSOLE",
    help="Whether a page shows the run in a browser.  [default: console]",
)


@click.command()
@click.argument("job_file", type=click.Path(path_type=Path))
@click.option("--nodes", type=click.IntRange(min=1), help="Local nodes at most; lowers spec.nodes.max.")
@click.option("--faults", type=click.Path(path_type=Path), help="A script of faults to inject.")
@_state_dir_option
@click.option("--fresh", is_flag=True, help="Start over: remove what an earlier run of this job left.")
@click.option(
    "--continue",
    "continues",
    is_flag=True,
    help="Go on with a job that has succeeded, whatever its file says.",
)
@click.option(
    "--save-within",
    type=click.FloatRange(min=0.0),
    default=SAVE_WITHIN_S,
    show_default=True,
    help="Seconds that a last checkpoint may take after Ctrl-C or SIGTERM; 0 stops at once.",
)
@click.option(
    "--skip-batches",
    type=click.IntRange(min=1),
    help="Go on with a job that has failed or was stopped without so many batches after its newest checkpoint.",
)
@click.option("--listen", default="127.0.0.1:0", show_default=True, help="Where the watchdog listens.")
@click.option("--observe", is_flag=True, help="Tell what would be done about each fault, and do nothing.")
@_console_option
@click.option("--replace/--no-replace", default=True, help="Whether lost nodes are replaced.  [default: replace]")
@click.option("--replace-delay", default=2.0, show_default=True, help="Seconds until a replacement comes.")
def run(
    job_file: Path,
    nodes: int | None,
    faults: Path | None,
    state_dir: Path | None,
    fresh: bool,
    continues: bool,
    save_within: float,
    skip_batches: int | None,
    listen: str,
    observe: bool,
    has_console: bool,
    replace: bool,
    replace_delay: float,
) -> ExitCode:
    """Run JOB_FILE on this machine: each node is a process, and what breaks is healed.

    The entry point is looked up beside the job file, and runs there. State goes to --state-dir, by default
    ./.holdfast/NAMESPACE-NAME; the same command again resumes a run that was stopped. With --observe each fault is
    an incident that says what would be done; nothing is, and a job which loses a worker or a node ends.
    Ctrl-C or SIGTERM saves first; a second one stops at once. A job that has succeeded goes on where its arguments
    or its script have changed; another entry point or another world takes --continue or --fresh.
    Exits with 0 when the job succeeded, 1 when it failed or a fault of the script was not injected, 2 when a file
    or flag is wrong, 3 when something is not there, 130 after Ctrl-C.
    """
    if fresh and continues:
        raise InvalidInput(Problem("--continue", value=True, fix="leave out either --continue or --fresh"))
    if fresh and skip_batches:
        raise InvalidInput(Problem("--skip-batches", skip_batches, "leave out either --skip-batches or --fresh"))
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
        placement=PlacementOptions(replaces=replace, delay_s=replace_delay),
        listen=listen,
        starts_over=fresh,
        observes=observe,
        has_console=has_console,
        continues=continues,
        save_within_s=save_within,
        skip_batches=skip_batches or 0,
    )
    audience = LineAudience(time.monotonic)
    audience.say(f"state and logs are in {directory.root}")
    try:
        picture = asyncio.run(run_session(options, audience))
    except Interrupted as stopped:
        says = str(stopped) or "stopped; the same command goes on from the newest checkpoint, if one was saved"
        click.echo(without_commands(says), err=True)
        return ExitCode.INTERRUPTED
    return conclude(picture, says_how_to_go_on=True)


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


def conclude(picture: Picture, *, says_how_to_go_on: bool) -> ExitCode:
    """Say how the job ended. A drill that did not happen is a failure as well."""
    status, incidents = picture.status, picture.incidents
    for missed in picture.missed:
        click.echo(f"NOT INJECTED: {missed}", err=True)
    if status.phase is JobPhase.SUCCEEDED or (incidents and incidents[-1].kind is FindingKind.NOTHING_TO_RESTORE):
        going_on = "; --fresh starts it over"
    elif status.last_checkpoint is None:
        going_on = "; no checkpoint was saved, so the same command begins anew"
    else:
        going_on = "; the same command goes on from the newest checkpoint, --fresh starts it over"
    going_on = going_on if says_how_to_go_on else ""
    if status.phase is JobPhase.SUCCEEDED:
        click.echo(f"{status.job} succeeded{going_on}", err=True)
        return ExitCode.FAILED if picture.missed else ExitCode.OK
    # The last error's text follows below, in full.
    reason = status.reason.partition("; last error:")[0].partition("\n")[0]
    click.echo(without_commands(f"{status.job} failed: {reason}{going_on}"), err=True)
    errors = [incident.error for incident in incidents if incident.error]
    for line in errors[-1].splitlines()[-ERROR_LINES:] if errors else ():
        click.echo(without_commands(f"  {line}"), err=True)
    return ExitCode.FAILED


@click.command()
@click.option(
    "--text",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="A folder of text to train on; by default the standard library's source.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=DEMO_STEPS_MIN),
    default=DEMO_STEPS_DEFAULT,
    show_default=True,
    help="How long to train.",
)
@_state_dir_option
@click.option("--plain", is_flag=True, help="Lines instead of a live view.")
@_console_option
def demo(text: Path | None, steps: int, state_dir: Path | None, plain: bool, has_console: bool) -> ExitCode:
    """Train a small model on three local nodes and a spare, break it four ways, and watch it heal.

    A worker is killed, a node is lost, a worker hangs, and a GPU falls off the bus. Exits with 0 when the run
    succeeded and every fault was healed.
    """
    job_file = example_job_file()
    directory = StateDirectory((state_dir or DEFAULT_PARENT / "demo").absolute())
    job = demo_job(read_job_file(job_file), steps=steps, text=text)
    options = RunOptions(
        prepared=prepare(job, job_file, None, directory.checkpoints),
        job_file=str(job_file),
        directory=directory,
        placement=PlacementOptions(),
        faults=demo_faults(steps),
        starts_over=True,
        has_console=has_console,
        save_within_s=0.0,  # nobody goes on with a demo
    )
    try:
        if plain or not sys.stderr.isatty():
            picture = asyncio.run(run_session(options, LineAudience(time.monotonic)))
        else:
            from holdfast.cli.embedded.liveaudience import LiveAudience

            audience = LiveAudience(time.monotonic, steps)
            with audience.live:
                picture = asyncio.run(run_session(options, audience))
    except Interrupted:
        click.echo("stopped", err=True)
        return ExitCode.INTERRUPTED
    click.echo(without_commands(incidents_text(picture.incidents)))
    code = conclude(picture, says_how_to_go_on=False)
    healed = sum(incident.state is IncidentState.RECOVERED for incident in picture.incidents)
    if picture.status.phase is JobPhase.SUCCEEDED and healed < len(options.faults):
        click.echo(f"only {healed} of {len(options.faults)} faults were healed", err=True)
        return ExitCode.FAILED
    return code


def demo_job(example: TrainingJob, *, steps: int, text: Path | None) -> TrainingJob:
    """The example, made elastic and given its length; it saves into the run's own state directory."""
    words = (*example.spec.entrypoint, "--steps", str(steps))
    if text is not None:
        words = (*words, "--text", str(text.absolute()))
    checkpoint = example.spec.checkpoint.model_copy(update={"uri": None})
    spec = example.spec.model_copy(update={"entrypoint": words, "nodes": DEMO_NODES, "checkpoint": checkpoint})
    metadata = example.metadata.model_copy(update={"name": "demo"})
    return example.model_copy(update={"spec": spec, "metadata": metadata})


def demo_faults(steps: int) -> tuple[ScriptedFault, ...]:
    """A crash, a lost node, a hang and a broken GPU, each after the one before was healed."""
    deeds = (
        (Deed.KILL_WORKER, None),
        (Deed.KILL_NODE, None),
        (Deed.STOP_WORKER, None),
        (Deed.XID, SIMULATED_GPU_FELL_OFF_THE_BUS),
    )
    return tuple(
        ScriptedFault(
            at=When(step=steps * (place + 1) // (len(deeds) + 2)), do=deed, after=After.RECOVERED, rank=1, xid=xid
        )
        for place, (deed, xid) in enumerate(deeds)
    )
