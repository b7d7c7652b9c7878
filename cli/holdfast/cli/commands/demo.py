"""`holdfast demo`."""

import asyncio
import sys
import time
from pathlib import Path

import click

from holdfast.api.incident import IncidentState
from holdfast.api.status import JobPhase
from holdfast.cli.commands.run import Again, conclude
from holdfast.cli.embedded.demonstration import (
    STEPS_DEFAULT,
    STEPS_MIN,
    demo_faults,
    demo_job,
    example_job_file,
)
from holdfast.cli.embedded.lineaudience import LineAudience
from holdfast.cli.embedded.placement import Terms
from holdfast.cli.embedded.preparation import prepare
from holdfast.cli.embedded.session import Beginning, Interrupted, RunTerms, run_session
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.manifest import read_job_file
from holdfast.cli.statedirectory import DEFAULT_PARENT, StateDirectory
from holdfast.cli.view.incident import incidents_text
from holdfast.cli.view.picture import Picture


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
    terms = RunTerms(
        prepared=prepare(job, job_file, None, directory.checkpoints),
        job_file=str(job_file),
        directory=directory,
        placement=Terms(),
        faults=demo_faults(steps),
        beginning=Beginning.FRESH,
    )
    try:
        picture = _watched(terms, steps, plain=plain or not sys.stderr.isatty())
    except Interrupted:
        click.echo("stopped", err=True)
        return ExitCode.INTERRUPTED
    click.echo(incidents_text(picture.incidents))
    code = conclude(picture, again=Again())
    healed = sum(incident.state is IncidentState.RECOVERED for incident in picture.incidents)
    if picture.status.phase is JobPhase.SUCCEEDED and healed < len(terms.faults):
        click.echo(f"only {healed} of {len(terms.faults)} faults were healed", err=True)
        return ExitCode.FAILED
    return code


def _watched(terms: RunTerms, steps: int, *, plain: bool) -> Picture:
    if plain:
        return asyncio.run(run_session(terms, LineAudience(time.monotonic)))
    from holdfast.cli.embedded.liveaudience import LiveAudience

    audience = LiveAudience(time.monotonic, steps)
    with audience.on_stage():
        return asyncio.run(run_session(terms, audience))
