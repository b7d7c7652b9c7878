"""`holdfast demo`: the example of this repository on three nodes and a spare, and four faults."""

import asyncio
import sys
import time
from pathlib import Path

import click

from holdfast.api.errors import Unavailable
from holdfast.api.incident import IncidentState
from holdfast.api.status import JobPhase
from holdfast.api.trainingjob import Nodes, TrainingJob
from holdfast.cli.commands.run import Again, conclude
from holdfast.cli.embedded.audience import LineAudience
from holdfast.cli.embedded.faultscript import After, Deed, ScriptedFault, When
from holdfast.cli.embedded.jobfile import prepare, read_job_file
from holdfast.cli.embedded.placement import PlacementOptions
from holdfast.cli.embedded.session import Beginning, Interrupted, RunOptions, run_session
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.statedirectory import DEFAULT_PARENT, StateDirectory
from holdfast.cli.view.incident import incidents_text
from holdfast.cli.view.news import Picture

NODES = Nodes(min=2, max=3, spares=1)
STEPS_DEFAULT = 300
STEPS_MIN = 100  # fewer leave no time between the faults
SIMULATED_GPU_FELL_OFF_THE_BUS = 79


@click.command()
@click.option(
    "--text",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="A folder of text to train on; by default the standard library's source.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=STEPS_MIN),
    default=STEPS_DEFAULT,
    show_default=True,
    help="How long to train.",
)
@click.option(
    "--state-dir", type=click.Path(path_type=Path, file_okay=False), help="Where the run keeps its state."
)
@click.option("--plain", is_flag=True, help="Lines instead of a live view.")
def demo(text: Path | None, steps: int, state_dir: Path | None, plain: bool) -> ExitCode:
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
        beginning=Beginning.FRESH,
    )
    try:
        picture = _watched(options, steps, plain=plain or not sys.stderr.isatty())
    except Interrupted:
        click.echo("stopped", err=True)
        return ExitCode.INTERRUPTED
    click.echo(incidents_text(picture.incidents))
    code = conclude(picture, again=Again())
    healed = sum(incident.state is IncidentState.RECOVERED for incident in picture.incidents)
    if picture.status.phase is JobPhase.SUCCEEDED and healed < len(options.faults):
        click.echo(f"only {healed} of {len(options.faults)} faults were healed", err=True)
        return ExitCode.FAILED
    return code


def _watched(options: RunOptions, steps: int, *, plain: bool) -> Picture:
    if plain:
        return asyncio.run(run_session(options, LineAudience(time.monotonic)))
    from holdfast.cli.embedded.liveaudience import LiveAudience

    audience = LiveAudience(time.monotonic, steps)
    with audience.on_terminal():
        return asyncio.run(run_session(options, audience))


def example_job_file() -> Path:
    """The job file of the example. Raises Unavailable where Holdfast is installed without its examples."""
    file = Path(__file__).resolve().parents[4] / "examples" / "bytes" / "job.yaml"
    if not file.is_file():
        raise Unavailable(
            "the demo needs the examples folder of the source tree, which is not installed with Holdfast"
        )
    return file


def demo_job(example: TrainingJob, *, steps: int, text: Path | None) -> TrainingJob:
    """The example, made elastic and given its length; it saves into the run's own state directory."""
    words = (*example.spec.entrypoint, "--steps", str(steps))
    if text is not None:
        words = (*words, "--text", str(text.absolute()))
    checkpoint = example.spec.checkpoint.model_copy(update={"uri": None})
    spec = example.spec.model_copy(update={"entrypoint": words, "nodes": NODES, "checkpoint": checkpoint})
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
