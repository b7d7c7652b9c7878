"""The interventions: what an on-call engineer asks a job for. Each is recorded with its reason."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from holdfast.api.intervention import InterventionAction, InterventionState
from holdfast.cli.archive import connect, job_of
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.output import state_option
from holdfast.cli.statedirectory import find_state_directory

_OPTIONS = (
    click.option("--reason", default="asked for on the command line", show_default=True, help="Why; recorded."),
    click.option("--dry-run", is_flag=True, help="Show the Intervention and do nothing."),
    state_option,
)


def _options(command: Callable[..., ExitCode]) -> Callable[..., ExitCode]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.argument("node")
@_options
def evict(node: str, reason: str, dry_run: bool, state_dir: Path | None) -> ExitCode:
    """Take NODE out of the job; a spare or fewer nodes go on."""
    return _intervene(InterventionAction.EVICT, reason, state_dir, {"node": node}, dry_run=dry_run)


@click.command("return")
@click.argument("node")
@_options
def return_(node: str, reason: str, dry_run: bool, state_dir: Path | None) -> ExitCode:
    """Put NODE, which was avoided, back into service."""
    return _intervene(InterventionAction.RETURN, reason, state_dir, {"node": node}, dry_run=dry_run)


@click.command()
@_options
def pause(reason: str, dry_run: bool, state_dir: Path | None) -> ExitCode:
    """Stop training; members stay and wait."""
    return _intervene(InterventionAction.PAUSE, reason, state_dir, {}, dry_run=dry_run)


@click.command()
@_options
def resume(reason: str, dry_run: bool, state_dir: Path | None) -> ExitCode:
    """Go on training after a pause."""
    return _intervene(InterventionAction.RESUME, reason, state_dir, {}, dry_run=dry_run)


@click.command()
@_options
def restart(reason: str, dry_run: bool, state_dir: Path | None) -> ExitCode:
    """Start every worker again, from the newest checkpoint."""
    return _intervene(InterventionAction.RESTART, reason, state_dir, {}, dry_run=dry_run)


def _intervene(
    action: InterventionAction, reason: str, state_dir: Path | None, fields: dict[str, Any], *, dry_run: bool
) -> ExitCode:
    from holdfast.api.interventionspec import read_intervention, request_of
    from holdfast.api.metadata import API_VERSION

    namespace, _, job = job_of(find_state_directory(state_dir)).job.partition("/")
    document = {
        "apiVersion": API_VERSION,
        "kind": "Intervention",
        "metadata": {"generateName": f"{action.lower()}-", "namespace": namespace},
        "spec": {"job": job, "action": action.value, "reason": reason, **fields},
    }
    intervention = read_intervention(document)
    if dry_run:
        import yaml

        click.echo(yaml.safe_dump(document, sort_keys=False), nl=False)
        return ExitCode.OK
    id = f"{action.lower()}-{secrets.token_hex(4)}"
    outcome = connect(state_dir).intervene(request_of(intervention, id))
    click.echo(f"{outcome.state}: {outcome.outcome}", err=outcome.state is InterventionState.REFUSED)
    return ExitCode.FAILED if outcome.state is InterventionState.REFUSED else ExitCode.OK
